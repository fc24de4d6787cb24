---------------------------------------------------------------------------------------------------
-- retry   ARGV by cmd seq failed cancelled expired  R (range N (row attempt data)*N)*R
--         OK seq | STALE | CANCELLING | NOJOB
-- Rows that have their ending are open again, each under its next attempt and in a range of its own kind (`attempts`).
-- seq: up to where the caller has read the log; STALE if that is too short to know these rows. failed, cancelled,
-- expired: how the rows had ended. data lacks only the range. An ended job is reopened.
---------------------------------------------------------------------------------------------------
local function parse_retry(args)
  local wanted = {
    by = args[1], cmd = args[2], seq = integer(args[3], 'seq'), ranges = {}, num_rows = 0,
    counts = {failed = integer(args[4], 'failed'), cancelled = integer(args[5], 'cancelled'),
      expired = integer(args[6], 'expired')},
  }
  local at = 8
  for _ = 1, integer(args[7], 'ranges') do
    local range = {text = args[at], rows = {}}
    object(range.text, 'range')
    local count = integer(args[at + 1], 'rows')
    at = at + 2
    for i = 1, count do
      range.rows[i] = {row = integer(args[at], 'row'), attempt = integer(args[at + 1], 'attempt'), data = args[at + 2]}
      object(args[at + 2], 'data')
      at = at + 3
    end
    wanted.ranges[#wanted.ranges + 1], wanted.num_rows = range, wanted.num_rows + count
  end
  if #args ~= at - 1 or wanted.num_rows == 0 then error('sr_v1: retry was cut short') end
  return wanted
end

local function is_known(job, wanted)
  if wanted.seq > job.seq or wanted.seq < job.retry_seq then return false end
  for _, range in ipairs(wanted.ranges) do
    for _, one in ipairs(range.rows) do
      if one.row >= job.rows then error('sr_v1: row ' .. one.row .. ' is outside the job') end
      if not ENDED[job.status] and redis.call('GETBIT', job.keys[5], one.row) == 0 then return false end
      if latest_attempt(job, one.row) + 1 ~= one.attempt then return false end
    end
  end
  for name, count in pairs(wanted.counts) do
    if tonumber(redis.call('HGET', job.keys[6], name)) < count then return false end
  end
  return true
end

-- Rows that shared the ending keep it: their bits are set, and nobody finds their ranges any more.
local function reopen(job, wanted, last_range)
  append(job, 'job.reopened', wanted.by, string.format('{"rows":%d}', wanted.num_rows))
  local whole = math.floor(job.rows / 8)
  if whole > 0 then redis.call('SETRANGE', job.keys[5], 0, string.rep('\255', whole)) end
  for row = 8 * whole, job.rows - 1 do redis.call('SETBIT', job.keys[5], row, 1) end
  redis.call('XGROUP', 'DESTROY', job.keys[3], GROUP)
  redis.call('XGROUP', 'CREATE', job.keys[3], GROUP, last_range)
  redis.call('DEL', job.keys[4])
  for _, name in ipairs(redis.call('HKEYS', job.keys[6])) do
    local worker = string.match(name, '^w:(.*)$')
    if worker then
      redis.call('DEL', job.lease_prefix .. worker)
      set(job, name, 'left')
    end
  end
  set(job, 'status', 'in_progress', 'clock', job.time, 'reason', '', 'limit', '')
  redis.call('HDEL', job.keys[6], 'ended')
end

local function open_again(job, by, range, id)
  redis.call('XADD', job.keys[3], id, 'range', range.text)
  for _, one in ipairs(range.rows) do
    append(job, 'request.retried', by, string.sub(one.data, 1, -2) .. ',"range":"' .. id .. '"}')
    redis.call('SETBIT', job.keys[5], one.row, 0)
    redis.call('HSET', job.attempts, string.format('%d', one.row), one.attempt)
  end
end

local function retry(keys, args)
  local wanted = parse_retry(args)
  local job = open(keys)
  if not job.status then return reply({s = 'NOJOB'}) end
  local before = redis.call('HGET', keys[6], 'cmd:' .. wanted.cmd)
  if before then return reply({s = 'OK', seq = tonumber(before), status = job.status}) end
  if job.status == 'cancelling' then return reply(standing(job, 'CANCELLING')) end
  if not is_known(job, wanted) then return reply(standing(job, 'STALE')) end

  local last_range = redis.call('XREVRANGE', keys[3], '+', '-', 'COUNT', 1)[1][1]
  local number = tonumber(string.match(last_range, '^(%d+)'))
  if ENDED[job.status] then reopen(job, wanted, last_range) end
  for i, range in ipairs(wanted.ranges) do open_again(job, wanted.by, range, string.format('%d-0', number + i)) end
  for name, count in pairs(wanted.counts) do
    if count > 0 then redis.call('HINCRBY', keys[6], name, -count) end
  end
  set(job, 'ctl', job.seq, 'retry_seq', job.seq, 'cmd:' .. wanted.cmd, job.seq)
  return reply({s = 'OK', seq = job.seq, status = redis.call('HGET', keys[6], 'status')})
end

redis.register_function('sr_v1_retry', retry)
