---------------------------------------------------------------------------------------------------
-- flush   ARGV worker epoch token n steps trim  E (type data)*E  T (row range claim type data payload ptok ctok)*T
--         OK t | DUP (the reply of that flush, or none) | GAP last | EXPIRED | FENCED
-- t, one per terminal: a seq, or CLOSED (row has one), STALE (not under that claim, or split off), ENDED.
-- cuts: 'range=row ' for every range of this worker that has lost its rows from `row` on to a split since the last flush.
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

local function is_retried_elsewhere(job, t)
  if job.retry_seq == 0 then return false end
  return attempt_in(cjson.decode(read_range(job, t.range)), t.row) ~= latest_attempt(job, t.row)
end

-- A result that is too large for its stream was kept before (`blob`); a reference to nothing would lose the row.
local function require_blobs(job, terminals)
  for _, t in ipairs(terminals) do
    local ref = not t.refused and string.sub(t.payload, 1, 7) == '{"ref":' and cjson.decode(t.payload).ref
    if ref and redis.call('HSTRLEN', job.blobs, tostring(ref.sha256)) ~= ref.bytes then
      error('sr_v1: the result of row ' .. t.row .. ' refers to nothing')
    end
  end
end

local function judge(job, worker, terminals)
  local seen, claims = {}, {}
  for _, t in ipairs(terminals) do
    if claims[t.range] == nil then claims[t.range] = read_claim(job, t.range) or false end
    local owner = claims[t.range]
    if ENDED[job.status] then t.refused = 'ENDED'
    elseif not owner or owner.claim ~= t.claim or owner.worker ~= worker then t.refused = 'STALE'
    elseif owner.limit and t.row >= owner.limit then t.refused = 'STALE'
    elseif is_retried_elsewhere(job, t) then t.refused = 'STALE'
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
    local spec, owner = cjson.decode(read_range(job, range)), read_claim(job, range)
    if num_open(job, spec, num_rows(spec, owner)) == 0 then redis.call('XACK', job.keys[3], GROUP, range) end
  end
end

local function write_events(job, worker, args, first, count)
  for i = 0, count - 1 do
    local kind, data = args[first + 2 * i], args[first + 2 * i + 1]
    append(job, kind, worker, data)
    -- The newest one beside the counters, so that a status need not look for it in the log.
    if kind == 'progress' then set(job, 'p:' .. worker, data) end
  end
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

-- A cut is reported once, and again if the reply of that flush was lost.
local function report_cuts(job, worker, cuts, reported)
  if cuts then
    redis.call('HDEL', job.keys[6], 'cut:' .. worker)
    set(job, 'rcut:' .. worker, cuts)
  elseif reported then
    redis.call('HDEL', job.keys[6], 'rcut:' .. worker)
  end
  return cuts or nil
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
  local last = redis.call('HMGET', keys[6], 'n:' .. worker, 'r:' .. worker, 'cut:' .. worker, 'rcut:' .. worker)
  local last_epoch, last_n = string.match(last[1] or '0 0', '^(%d+) (%d+)$')
  last_n = tonumber(last_epoch) == epoch and tonumber(last_n) or 0
  if n <= last_n then
    local again = standing(job, 'DUP')
    if n == last_n then again.t, again.cuts = last[2] and cjson.decode(last[2]), last[4] or nil end
    again.open = job.rows - redis.call('BITCOUNT', keys[5])
    return reply(again)
  end
  if n > last_n + 1 then
    local gap = standing(job, 'GAP')
    gap.last = last_n
    return reply(gap)
  end
  judge(job, worker, terminals)
  require_blobs(job, terminals)

  -- First write: the only one that the server itself could refuse (its id must grow).
  if steps ~= '' then
    redis.call('XADD', keys[8], string.format('%d-%d', epoch, n), 'v', '1', 't', job.time, 'd', steps)
  end
  if trim ~= '' then redis.call('XTRIM', keys[8], 'MINID', '~', trim) end
  write_events(job, worker, args, 8, num_events)
  local done = standing(job, 'OK')
  done.t = write_terminals(job, worker, terminals)
  done.cuts = report_cuts(job, worker, last[3], last[4])
  done.open = job.rows - redis.call('BITCOUNT', keys[5])
  local sums = redis.call('HMGET', keys[6], 'completed', 'failed', 'completion_tokens')
  done.completed, done.failed, done.output_tokens = tonumber(sums[1]), tonumber(sums[2]), tonumber(sums[3])
  set(job, 'n:' .. worker, string.format('%d %d', epoch, n), 'r:' .. worker, cjson.encode(done.t))
  return reply(done)
end

---------------------------------------------------------------------------------------------------
-- blob   ARGV sha256 bytes      OK | ENDED | NOJOB
-- Keeps a large result under its digest, so that a flush can refer to it; the same one again changes nothing.
---------------------------------------------------------------------------------------------------
local function blob(keys, args)
  if not string.match(args[1], '^%x+$') or #args[1] ~= 64 then error('sr_v1: no SHA-256') end
  object(args[2], 'blob')
  local job = open(keys)
  if not job.status then return reply({s = 'NOJOB'}) end
  if ENDED[job.status] then return reply(standing(job, 'ENDED')) end
  redis.call('HSETNX', job.blobs, args[1], args[2])
  return reply(standing(job, 'OK'))
end

redis.register_function('sr_v1_flush', flush)
redis.register_function('sr_v1_blob', blob)
