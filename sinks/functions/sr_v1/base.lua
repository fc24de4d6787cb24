#!lua name=sr_v1
-- The only writer of a job's log. Every function is one atomic step, validates all it was given
-- before its first write (Lua does not roll back), then writes log entry, bit and counters in that order.
--
--   KEYS  1 log  2 res  3 work  4 claims  5 done  6 meta  [7 lease of the caller  8 steps of the caller]
--
-- Replies are JSON objects with "s" (OK, or why not) and whatever the caller needs to go on.
-- The files of this folder are one library: `sinks/library.py` joins them, this one first.
-- Never edit them once released: other code gets another library name (sr_v2).

local LEASE_MS = 15000
local GROUP = 'workers'
local ENDED = {completed = true, failed = true, cancelled = true, expired = true}
local COUNTER = {
  ['request.completed'] = 'completed', ['request.failed'] = 'failed',
  ['request.cancelled'] = 'cancelled', ['request.expired'] = 'expired',
}
local WORKER_EVENT = {progress = true, notice = true}

-- These write next to nothing, and a server without memory to spare must still hear who lives and who cancels.
local function register_small(name, callback)
  redis.register_function{function_name = name, callback = callback, flags = {'allow-oom'}}
end

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
  local meta = redis.call('HMGET', keys[6], 'status', 'gen', 'run_id', 'rows', 'paused', 'ctl', 'clock', 'retry_seq')
  local last = redis.call('XREVRANGE', keys[1], '+', '-', 'COUNT', 1)
  local job = {
    keys = keys, status = meta[1], gen = tonumber(meta[2]) or 0, rows = tonumber(meta[4]) or 0,
    paused = meta[5] == '1', ctl = tonumber(meta[6]) or 0, time = now_ms(),
    seq = last[1] and tonumber(string.match(last[1][1], '^(%d+)')) or 0,
    clock = tonumber(meta[7]) or 0, retry_seq = tonumber(meta[8]) or 0,
  }
  -- These share the job's slot; leases of other workers cannot be declared beforehand.
  local prefix = string.match(keys[1], '^(.*):log$')
  job.lease_prefix, job.attempts = prefix .. ':lease:', prefix .. ':attempts'
  job.blobs = prefix .. ':blobs'
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

-- What workers read again while a job runs, as JSON.
local SETTINGS = {'limits', 'stop_when', 'priority'}

local function keep_settings(job, changes)
  for _, name in ipairs(SETTINGS) do
    if changes[name] ~= nil then set(job, name, cjson.encode(changes[name])) end
  end
end

-- clock: since when the deadline counts, that is the first start or the last reopening.
local function standing(job, s)
  return {s = s, status = job.status, paused = job.paused, ctl = job.ctl, time = job.time, clock = job.clock}
end

-- Ownership is per acquisition (epoch and random token), never per name: a stale holder cannot pass.
local function lease_fault(job, epoch, token)
  local held = redis.call('GET', job.keys[7])
  if not held then return 'EXPIRED' end
  if held ~= epoch .. ':' .. token then return 'FENCED' end
  return nil
end

-- claims holds, per range, 'claim|worker|previous|limit|since':
--   previous  'worker@since,...': earlier owners, and behind which step id their tokens of these rows stand
--   limit     the first row that a split took away, or nothing
--   since     the owner's last step id when it claimed
local function read_claim(job, range)
  local text = redis.call('HGET', job.keys[4], range)
  if not text then return nil end
  local claim, worker, previous, limit, since = string.match(text, '^(%d+)|([^|]*)|([^|]*)|(%d*)|([^|]*)$')
  return {claim = tonumber(claim), worker = worker, previous = previous, limit = tonumber(limit), since = since}
end

local function write_claim(job, range, held)
  redis.call('HSET', job.keys[4], range, string.format('%d|%s|%s|%s|%s', held.claim, held.worker, held.previous,
    held.limit and string.format('%d', held.limit) or '', held.since))
end

-- The earlier owners of a range whose present one goes.
local function succession(held)
  return (held.previous == '' and '' or held.previous .. ',') .. held.worker .. '@' .. held.since
end

-- The last step id of a worker, as `<epoch>-<n>`.
local function last_step(job, worker)
  local epoch, n = string.match(redis.call('HGET', job.keys[6], 'n:' .. worker) or '0 0', '^(%d+) (%d+)$')
  return epoch .. '-' .. n
end

local function read_range(job, range)
  local entry = redis.call('XRANGE', job.keys[3], range, range)[1]
  if not entry then return nil end
  return entry[2][2]
end

-- How many of its rows a range still has: a split may have taken the last ones.
local function num_rows(spec, held)
  return held and held.limit and held.limit - spec.first or spec.count
end

-- `attempts` of a retry's range names its rows and the attempt of each; of its other rows it has only the lines.
local function attempt_in(spec, row)
  if type(spec.attempts) ~= 'table' or not next(spec.attempts) then return 1 end
  return spec.attempts[string.format('%d', row)]
end

local function latest_attempt(job, row)
  if job.retry_seq == 0 then return 1 end
  return tonumber(redis.call('HGET', job.attempts, string.format('%d', row))) or 1
end

-- A row belongs to the range of its latest attempt: any other range has nothing left to do for it.
local function is_done(job, spec, row)
  if redis.call('GETBIT', job.keys[5], row) == 1 then return true end
  return job.retry_seq > 0 and attempt_in(spec, row) ~= latest_attempt(job, row)
end

local function num_open(job, spec, count)
  if count == 0 then return 0 end
  if job.retry_seq == 0 then
    return count - redis.call('BITCOUNT', job.keys[5], spec.first, spec.first + count - 1, 'BIT')
  end
  local found = 0
  for row = spec.first, spec.first + count - 1 do
    if not is_done(job, spec, row) then found = found + 1 end
  end
  return found
end

-- What a claimer must know: which rows are open, and whose step streams hold their durable tokens.
local function describe_claim(job, range, held)
  local text = read_range(job, range)
  local spec = cjson.decode(text)
  local bits = {}
  for row = spec.first, spec.first + num_rows(spec, held) - 1 do
    bits[#bits + 1] = is_done(job, spec, row) and '1' or '0'
  end
  local found = standing(job, 'OK')
  found.range, found.claim, found.data, found.done = range, held.claim, text, table.concat(bits)
  found.previous, found.since = held.previous, held.since
  return found
end
