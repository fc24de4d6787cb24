#!lua name=sr_v1
-- The only writer of a job's log. Every function is one atomic step, validates all it was given
-- before its first write (Lua does not roll back), then writes log entry, bit and counters in that order.
--
--   KEYS  1 log  2 res  3 work  4 claims  5 done  6 meta  [7 lease of the caller  8 steps of the caller]
--
-- Replies are JSON objects with "s" (OK, or why not) and whatever the caller needs to go on.
-- Never edit this file once released: other code gets another library name (sr_v2).

local LEASE_MS = 15000
local GROUP = 'workers'
local ENDED = {completed = true, failed = true, cancelled = true, expired = true}
local COUNTER = {
  ['request.completed'] = 'completed', ['request.failed'] = 'failed',
  ['request.cancelled'] = 'cancelled', ['request.expired'] = 'expired',
}
local WORKER_EVENT = {progress = true, notice = true}

local function reply(fields) return cjson.encode(fields) end

local function now_ms()
  local t = redis.call('TIME')
  return string.format('%d', t[1] * 1000 + math.floor(t[2] / 1000))
end

local function integer(text, name)
  local value = tonumber(text)
  if not value or value < 0 or value ~= math.floor(value) then error('sr_v1: ' .. name .. ' is not a whole number') end
  return value
end

local function object(text, name)
  local ok, value = pcall(cjson.decode, text)
  if not ok or type(value) ~= 'table' or string.sub(text, 1, 1) ~= '{' then
    error('sr_v1: ' .. name .. ' is not a JSON object')
  end
  return value
end

-- A server that lost its tail hands the same seqs out again. Whoever meets another run of the
-- server raises gen, so that an id (seq-gen) never names two different entries.
local function open(keys)
  local meta = redis.call('HMGET', keys[6], 'status', 'gen', 'run_id', 'rows', 'paused', 'ctl')
  local last = redis.call('XREVRANGE', keys[1], '+', '-', 'COUNT', 1)
  local job = {
    keys = keys, status = meta[1], gen = tonumber(meta[2]) or 0, rows = tonumber(meta[4]) or 0,
    paused = meta[5] == '1', ctl = tonumber(meta[6]) or 0, time = now_ms(),
    seq = last[1] and tonumber(string.match(last[1][1], '^(%d+)')) or 0,
    -- Leases of other workers share this job's slot; their names cannot be declared beforehand.
    lease_prefix = string.match(keys[1], '^(.*):log$') .. ':lease:',
  }
  job.run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  job.new_run = job.status and meta[3] ~= job.run_id
  if job.new_run then job.gen = job.gen + 1 end
  return job
end

-- Epochs and claims that a lost tail had given out must not be given out again: no server
-- hands out a thousand of either in the seconds that it can lose.
local function meet(job)
  if not job.new_run then return end
  redis.call('HSET', job.keys[6], 'gen', job.gen, 'run_id', job.run_id)
  redis.call('HINCRBY', job.keys[6], 'epoch', 1000)
  redis.call('HINCRBY', job.keys[6], 'claim', 1000)
  job.new_run = false
end

local function append(job, kind, by, data)
  meet(job)
  job.seq = job.seq + 1
  redis.call('XADD', job.keys[1], string.format('%d-%d', job.seq, job.gen),
    'type', kind, 'v', '1', 'time', job.time, 'by', by, 'data', data)
  return job.seq
end

local function set(job, ...) redis.call('HSET', job.keys[6], ...) end

local function standing(job, s) return {s = s, status = job.status, paused = job.paused, ctl = job.ctl} end

-- Ownership is per acquisition (epoch and random token), never per name: a stale holder cannot pass.
local function lease_fault(job, epoch, token)
  local held = redis.call('GET', job.keys[7])
  if not held then return 'EXPIRED' end
  if held ~= epoch .. ':' .. token then return 'FENCED' end
  return nil
end

local function read_claim(job, range)
  local text = redis.call('HGET', job.keys[4], range)
  if not text then return nil end
  local claim, worker, previous = string.match(text, '^(%d+)|([^|]*)|(.*)$')
  return {claim = tonumber(claim), worker = worker, previous = previous}
end

local function read_range(job, range)
  local entry = redis.call('XRANGE', job.keys[3], range, range)[1]
  if not entry then return nil end
  return entry[2][2]
end

-- What a claimer must know: which rows are open, and whose step streams hold their durable tokens.
local function describe_claim(job, range, held)
  local text = read_range(job, range)
  local spec = cjson.decode(text)
  local bits = {}
  for row = spec.first, spec.first + spec.count - 1 do
    bits[#bits + 1] = redis.call('GETBIT', job.keys[5], row)
  end
  local found = standing(job, 'OK')
  found.range, found.claim, found.data, found.done = range, held.claim, text, table.concat(bits)
  found.previous = held.previous
  return found
end

---------------------------------------------------------------------------------------------------
-- submit   ARGV by data rows status range...        OK seq | EXISTS
---------------------------------------------------------------------------------------------------
local function submit(keys, args)
  local by, data, rows = args[1], args[2], integer(args[3], 'rows')
  object(data, 'data')
  for i = 4, #args do object(args[i], 'range') end
  if redis.call('EXISTS', keys[1], keys[6]) > 0 then return reply({s = 'EXISTS'}) end
  redis.call('DEL', keys[3])
  local job = open(keys)
  append(job, 'job.submitted', by, data)
  for i = 4, #args do redis.call('XADD', keys[3], (i - 3) .. '-0', 'range', args[i]) end
  redis.call('XGROUP', 'CREATE', keys[3], GROUP, '0', 'MKSTREAM')
  set(job, 'status', 'validating', 'rows', rows, 'gen', job.gen, 'run_id', job.run_id, 'epoch', 0, 'claim', 0,
    'ctl', 0, 'created', job.time, 'completed', 0, 'failed', 0, 'cancelled', 0, 'expired', 0,
    'prompt_tokens', 0, 'completion_tokens', 0)
  return reply({s = 'OK', seq = job.seq})
end

---------------------------------------------------------------------------------------------------
-- join   ARGV worker token data      OK epoch held | ENDED | NOJOB
-- held: the ranges this worker still owns (it only lost its lease), as described by claim.
---------------------------------------------------------------------------------------------------
local function joined_as(job, worker, epoch)
  local joined = standing(job, 'OK')
  joined.epoch, joined.held = epoch, {}
  for _, pending in ipairs(redis.call('XPENDING', job.keys[3], GROUP, '-', '+', 10000, worker)) do
    local held = read_claim(job, pending[1])
    joined.held[#joined.held + 1] = describe_claim(job, pending[1], held)
  end
  return joined
end

local function join(keys, args)
  local worker, token, data = args[1], args[2], args[3]
  object(data, 'data')
  local job = open(keys)
  if not job.status then return reply({s = 'NOJOB'}) end
  if ENDED[job.status] then return reply(standing(job, 'ENDED')) end
  -- The same token again is the caller's own join whose reply was lost.
  local lease = redis.call('GET', keys[7]) or ''
  local epoch = string.match(lease, '^%d+')
  if epoch and lease == epoch .. ':' .. token then return reply(joined_as(job, worker, tonumber(epoch))) end
  if job.status == 'validating' then
    append(job, 'job.started', worker, '{}')
    job.status = 'in_progress'
    set(job, 'status', 'in_progress', 'started', job.time)
  end
  meet(job)
  epoch = redis.call('HINCRBY', keys[6], 'epoch', 1)
  local rest = string.sub(data, 2)
  append(job, 'worker.joined', worker,
    '{"worker":"' .. worker .. '","epoch":' .. epoch .. (rest == '}' and '' or ',') .. rest)
  redis.call('SET', keys[7], epoch .. ':' .. token, 'PX', LEASE_MS)
  set(job, 'w:' .. worker, 'joined')
  return reply(joined_as(job, worker, epoch))
end

---------------------------------------------------------------------------------------------------
-- beat   ARGV epoch token      OK | EXPIRED | FENCED
---------------------------------------------------------------------------------------------------
local function beat(keys, args)
  local job = open(keys)
  local fault = lease_fault(job, args[1], args[2])
  if not fault then redis.call('PEXPIRE', keys[7], LEASE_MS) end
  return reply(standing(job, fault or 'OK'))
end

local function mark_lost(job, worker, by, reason)
  if redis.call('HGET', job.keys[6], 'w:' .. worker) ~= 'joined' then return end
  append(job, 'worker.lost', by, cjson.encode({worker = worker, reason = reason}))
  set(job, 'w:' .. worker, 'lost')
end

-- A range whose owner holds no lease, else nil and whether living owners hold others.
local function orphan(job, worker)
  local start, busy = '-', false
  repeat
    local page = redis.call('XPENDING', job.keys[3], GROUP, start, '+', 100)
    for _, pending in ipairs(page) do
      if pending[2] ~= worker then
        if redis.call('EXISTS', job.lease_prefix .. pending[2]) == 0 then return pending[1], true end
        busy = true
      end
      start = '(' .. pending[1]
    end
  until #page < 100
  return nil, busy
end

-- A claim whose reply was lost stands in the caller's pending list but not among the ranges it names.
local function forgotten(job, worker, known)
  for _, pending in ipairs(redis.call('XPENDING', job.keys[3], GROUP, '-', '+', 10000, worker)) do
    if not string.find(known, ' ' .. pending[1] .. ' ', 1, true) then return pending[1] end
  end
  return nil
end

---------------------------------------------------------------------------------------------------
-- claim   ARGV worker epoch token known      OK range | NONE | BUSY | EXPIRED | FENCED | PAUSED | ENDED
-- known: ' id id ' of the ranges the caller holds. Half-finished ranges of dead workers come first.
---------------------------------------------------------------------------------------------------
local function claim(keys, args)
  local worker, epoch, known = args[1], args[2], args[4]
  local job = open(keys)
  local fault = lease_fault(job, epoch, args[3])
  if fault then return reply(standing(job, fault)) end
  if job.status ~= 'in_progress' then return reply(standing(job, 'ENDED')) end
  if job.paused then return reply(standing(job, 'PAUSED')) end
  local mine = forgotten(job, worker, known)
  if mine then return reply(describe_claim(job, mine, read_claim(job, mine))) end
  local range, busy = orphan(job, worker)
  local before
  if range then
    before = read_claim(job, range)
    redis.call('XCLAIM', keys[3], GROUP, worker, 0, range, 'JUSTID')
    if before then mark_lost(job, before.worker, worker, 'lease expired') end
  else
    local fresh = redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', 1, 'STREAMS', keys[3], '>')
    if not fresh or not fresh[1] then return reply(standing(job, busy and 'BUSY' or 'NONE')) end
    range = fresh[1][2][1][1]
  end
  meet(job)
  local number = redis.call('HINCRBY', keys[6], 'claim', 1)
  local previous = ''
  if before then previous = before.previous == '' and before.worker or before.previous .. ',' .. before.worker end
  redis.call('HSET', keys[4], range, number .. '|' .. worker .. '|' .. previous)
  local spec = cjson.decode(read_range(job, range))
  append(job, 'range.claimed', worker, cjson.encode({
    range = range, claim = number, worker = worker, epoch = tonumber(epoch),
    first = spec.first, count = spec.count, from = before and before.worker or cjson.null}))
  return reply(describe_claim(job, range, {claim = number, previous = previous}))
end

---------------------------------------------------------------------------------------------------
-- flush   ARGV worker epoch token n steps trim  E (type data)*E  T (row range claim type data payload ptok ctok)*T
--         OK t | DUP (the reply of that flush, or none) | GAP last | EXPIRED | FENCED
-- t, one per terminal: a seq, or CLOSED (row has one), STALE (range not under that claim), ENDED.
---------------------------------------------------------------------------------------------------
local TERMINAL_ARGS = 8

local function parse_terminals(job, args, first, count)
  local terminals = {}
  for i = 0, count - 1 do
    local at = first + i * TERMINAL_ARGS
    local t = {
      row = integer(args[at], 'row'), range = args[at + 1], claim = integer(args[at + 2], 'claim'),
      kind = args[at + 3], data = args[at + 4], payload = args[at + 5],
      prompt_tokens = integer(args[at + 6], 'prompt_tokens'), completion_tokens = integer(args[at + 7], 'completion_tokens'),
    }
    object(t.data, 'data')
    object(t.payload, 'payload')
    if not COUNTER[t.kind] then error('sr_v1: ' .. tostring(t.kind) .. ' ends no row') end
    if t.row >= job.rows then error('sr_v1: row ' .. t.row .. ' is outside the job') end
    terminals[#terminals + 1] = t
  end
  return terminals
end

local function judge(job, worker, terminals)
  local seen, claims = {}, {}
  for _, t in ipairs(terminals) do
    if claims[t.range] == nil then claims[t.range] = read_claim(job, t.range) or false end
    local owner = claims[t.range]
    if ENDED[job.status] then t.refused = 'ENDED'
    elseif not owner or owner.claim ~= t.claim or owner.worker ~= worker then t.refused = 'STALE'
    elseif seen[t.row] or redis.call('GETBIT', job.keys[5], t.row) == 1 then t.refused = 'CLOSED'
    else seen[t.row] = true end
  end
end

local function close_row(job, worker, t)
  local seq = append(job, t.kind, worker, t.data)
  redis.call('XADD', job.keys[2], string.format('%d-%d', seq, job.gen), 'v', '1', 'p', t.payload)
  redis.call('SETBIT', job.keys[5], t.row, 1)
  redis.call('HINCRBY', job.keys[6], COUNTER[t.kind], 1)
  redis.call('HINCRBY', job.keys[6], 'prompt_tokens', t.prompt_tokens)
  redis.call('HINCRBY', job.keys[6], 'completion_tokens', t.completion_tokens)
  return seq
end

local function acknowledge_full(job, ranges)
  for range in pairs(ranges) do
    local spec = cjson.decode(read_range(job, range))
    if redis.call('BITCOUNT', job.keys[5], spec.first, spec.first + spec.count - 1, 'BIT') == spec.count then
      redis.call('XACK', job.keys[3], GROUP, range)
    end
  end
end

local function write_events(job, worker, args, first, count)
  for i = 0, count - 1 do append(job, args[first + 2 * i], worker, args[first + 2 * i + 1]) end
end

local function write_terminals(job, worker, terminals)
  local verdicts, touched = {}, {}
  for _, t in ipairs(terminals) do
    if t.refused then verdicts[#verdicts + 1] = t.refused
    else
      verdicts[#verdicts + 1] = close_row(job, worker, t)
      touched[t.range] = true
    end
  end
  acknowledge_full(job, touched)
  return verdicts
end

local function flush(keys, args)
  local worker, epoch, n, steps, trim = args[1], integer(args[2], 'epoch'), integer(args[4], 'n'), args[5], args[6]
  local num_events = integer(args[7], 'events')
  local at = 8 + 2 * num_events
  local num_terminals = integer(args[at], 'terminals')
  if #args ~= at + num_terminals * TERMINAL_ARGS then error('sr_v1: flush was cut short') end
  local job = open(keys)
  if not job.status then return reply({s = 'NOJOB'}) end
  local fault = lease_fault(job, args[2], args[3])
  if fault then return reply(standing(job, fault)) end
  for i = 0, num_events - 1 do
    if not WORKER_EVENT[args[8 + 2 * i]] then error('sr_v1: a worker may not append ' .. args[8 + 2 * i]) end
    object(args[9 + 2 * i], 'data')
  end
  local terminals = parse_terminals(job, args, at + 1, num_terminals)
  local last = redis.call('HMGET', keys[6], 'n:' .. worker, 'r:' .. worker)
  local last_epoch, last_n = string.match(last[1] or '0 0', '^(%d+) (%d+)$')
  last_n = tonumber(last_epoch) == epoch and tonumber(last_n) or 0
  if n <= last_n then
    local again = standing(job, 'DUP')
    if n == last_n and last[2] then again.t = cjson.decode(last[2]) end
    again.open = job.rows - redis.call('BITCOUNT', keys[5])
    return reply(again)
  end
  if n > last_n + 1 then
    local gap = standing(job, 'GAP')
    gap.last = last_n
    return reply(gap)
  end
  judge(job, worker, terminals)

  -- First write: the only one that the server itself could refuse (its id must grow).
  if steps ~= '' then
    redis.call('XADD', keys[8], string.format('%d-%d', epoch, n), 'v', '1', 't', job.time, 'd', steps)
  end
  if trim ~= '' then redis.call('XTRIM', keys[8], 'MINID', '~', trim) end
  write_events(job, worker, args, 8, num_events)
  local done = standing(job, 'OK')
  done.t = write_terminals(job, worker, terminals)
  done.open = job.rows - redis.call('BITCOUNT', keys[5])
  set(job, 'n:' .. worker, string.format('%d %d', epoch, n), 'r:' .. worker, cjson.encode(done.t))
  return reply(done)
end

---------------------------------------------------------------------------------------------------
-- control   ARGV by cmd kind data      OK seq | ENDED | NOJOB      kind: cancel pause resume
-- cmd is the caller's own ULID: the same command twice is one command.
---------------------------------------------------------------------------------------------------
local CONTROL = {
  cancel = function(job) return job.status ~= 'cancelling' and 'job.cancel_requested' end,
  pause = function(job) return job.status == 'in_progress' and not job.paused and 'job.paused' end,
  resume = function(job, data) return (job.paused or data ~= '{}') and 'job.resumed' end,
}
local EFFECT = {
  cancel = {'status', 'cancelling', 'paused', '0'}, pause = {'paused', '1'}, resume = {'paused', '0'},
}

local function control(keys, args)
  local by, cmd, kind, data = args[1], args[2], args[3], args[4]
  object(data, 'data')
  if not CONTROL[kind] then error('sr_v1: no control ' .. tostring(kind)) end
  local job = open(keys)
  if not job.status then return reply({s = 'NOJOB'}) end
  local before = redis.call('HGET', keys[6], 'cmd:' .. cmd)
  if before then return reply({s = 'OK', seq = tonumber(before), status = job.status}) end
  if ENDED[job.status] then return reply(standing(job, 'ENDED')) end
  local event = CONTROL[kind](job, data)
  if not event then return reply({s = 'OK', seq = job.ctl, status = job.status}) end
  local seq = append(job, event, by, data)
  set(job, 'ctl', seq, 'cmd:' .. cmd, seq, unpack(EFFECT[kind]))
  return reply({s = 'OK', seq = seq, status = redis.call('HGET', keys[6], 'status')})
end

---------------------------------------------------------------------------------------------------
-- finish   ARGV by status reason      OK | OPEN | ENDED | NOJOB
-- Rows still open share the job's ending: no event per row, so a million cancelled rows are one append.
---------------------------------------------------------------------------------------------------
local function finish(keys, args)
  local by, status, reason = args[1], args[2], args[3]
  if not ENDED[status] then error('sr_v1: ' .. tostring(status) .. ' is no ending') end
  local job = open(keys)
  if not job.status then return reply({s = 'NOJOB'}) end
  if ENDED[job.status] then return reply(standing(job, 'ENDED')) end
  local open_rows = job.rows - redis.call('BITCOUNT', keys[5])
  if status == 'completed' and open_rows > 0 then
    local still = standing(job, 'OPEN')
    still.open = open_rows
    return reply(still)
  end
  local m = redis.call('HMGET', keys[6], 'completed', 'failed', 'cancelled', 'expired', 'prompt_tokens', 'completion_tokens')
  local counts = {
    rows = job.rows, completed = tonumber(m[1]), failed = tonumber(m[2]),
    cancelled = tonumber(m[3]), expired = tonumber(m[4]),
  }
  if status ~= 'completed' then counts[status] = counts[status] + open_rows end
  append(job, 'job.ended', by, cjson.encode({
    status = status, reason = reason ~= '' and reason or cjson.null, counts = counts,
    usage = {prompt_tokens = tonumber(m[5]), completion_tokens = tonumber(m[6]),
      total_tokens = tonumber(m[5]) + tonumber(m[6])}}))
  set(job, 'status', status, 'ctl', job.seq, 'paused', '0', 'ended', job.time, 'reason', reason,
    'cancelled', counts.cancelled, 'expired', counts.expired, 'failed', counts.failed)
  job.status, job.ctl = status, job.seq
  return reply(standing(job, 'OK'))
end

---------------------------------------------------------------------------------------------------
-- leave   ARGV worker epoch token reason     OK | EXPIRED | FENCED    the worker stops on purpose
-- lost    ARGV worker by reason              OK | GONE               somebody proved its death
-- Either way its ranges can be claimed at once.
---------------------------------------------------------------------------------------------------
local function leave(keys, args)
  local worker, epoch, token, reason = args[1], args[2], args[3], args[4]
  local job = open(keys)
  local fault = lease_fault(job, epoch, token)
  if fault then return reply(standing(job, fault)) end
  append(job, 'worker.preempted', worker, cjson.encode({worker = worker, reason = reason}))
  redis.call('DEL', keys[7])
  set(job, 'w:' .. worker, 'left')
  return reply(standing(job, 'OK'))
end

local function lost(keys, args)
  local worker, by, reason = args[1], args[2], args[3]
  local job = open(keys)
  if not job.status then return reply({s = 'NOJOB'}) end
  local held = redis.call('DEL', keys[7])
  mark_lost(job, worker, by, reason)
  return reply(standing(job, held == 1 and 'OK' or 'GONE'))
end

redis.register_function('sr_v1_submit', submit)
redis.register_function('sr_v1_join', join)
redis.register_function('sr_v1_beat', beat)
redis.register_function('sr_v1_claim', claim)
redis.register_function('sr_v1_flush', flush)
redis.register_function('sr_v1_control', control)
redis.register_function('sr_v1_end', finish)
redis.register_function('sr_v1_leave', leave)
redis.register_function('sr_v1_lost', lost)
