---------------------------------------------------------------------------------------------------
-- finish   ARGV by status reason limit      OK | OPEN | ENDED | NOJOB      limit: the key of `limits` at fault, or nothing
-- Rows still open share the job's ending: no event per row, so a million cancelled rows are one append.
---------------------------------------------------------------------------------------------------
local function finish(keys, args)
  local by, status, reason, limit = args[1], args[2], args[3], args[4]
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
    status = status, reason = reason ~= '' and reason or cjson.null, limit = limit ~= '' and limit or nil, counts = counts,
    usage = {prompt_tokens = tonumber(m[5]), completion_tokens = tonumber(m[6]),
      total_tokens = tonumber(m[5]) + tonumber(m[6])}}))
  set(job, 'status', status, 'ctl', job.seq, 'paused', '0', 'ended', job.time, 'reason', reason, 'limit', limit,
    'cancelled', counts.cancelled, 'expired', counts.expired, 'failed', counts.failed)
  job.status, job.ctl = status, job.seq
  return reply(standing(job, 'OK'))
end

register_small('sr_v1_end', finish)
