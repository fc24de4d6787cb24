---------------------------------------------------------------------------------------------------
-- control   ARGV by cmd kind data      OK seq | ENDED | NOJOB      kind: cancel pause resume change
-- cmd is the caller's own ULID: the same command twice is one command. `changes` of resume and change are settings
-- that differ from here on; only resume lifts a pause.
---------------------------------------------------------------------------------------------------
local CONTROL = {
  cancel = function(job) return job.status ~= 'cancelling' and 'job.cancel_requested' end,
  pause = function(job) return job.status ~= 'cancelling' and not job.paused and 'job.paused' end,
  resume = function(job, data) return job.status ~= 'cancelling' and (job.paused or data ~= '{}') and 'job.resumed' end,
  change = function(job) return 'job.changed' end,
}
local EFFECT = {
  cancel = {'status', 'cancelling', 'paused', '0'}, pause = {'paused', '1'}, resume = {'paused', '0'}, change = {},
}

local function control(keys, args)
  local by, cmd, kind, data = args[1], args[2], args[3], args[4]
  local parsed = object(data, 'data')
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
  if type(parsed.changes) == 'table' then keep_settings(job, parsed.changes) end
  if kind == 'pause' or kind == 'resume' then set(job, 'reason', parsed.reason or '') end
  local done = standing(open(keys), 'OK')
  done.seq = seq
  return reply(done)
end

---------------------------------------------------------------------------------------------------
-- cancel_row   ARGV by cmd row attempt range data payload      OK seq open | CLOSED | STALE | ENDED | NOJOB
-- data lacks only the claim. CLOSED: the row has its ending. STALE: another attempt is on. Whoever runs the row finds
-- its bit set when it hears of a new control seq.
---------------------------------------------------------------------------------------------------
local function cancel_row(keys, args)
  local by, cmd, row, attempt, range = args[1], args[2], integer(args[3], 'row'), integer(args[4], 'attempt'), args[5]
  object(args[6], 'data')
  object(args[7], 'payload')
  local job = open(keys)
  if not job.status then return reply({s = 'NOJOB'}) end
  if row >= job.rows then error('sr_v1: row ' .. row .. ' is outside the job') end
  local before = redis.call('HGET', keys[6], 'cmd:' .. cmd)
  if before then return reply({s = 'OK', seq = tonumber(before), status = job.status}) end
  if ENDED[job.status] then return reply(standing(job, 'ENDED')) end
  if redis.call('GETBIT', keys[5], row) == 1 then return reply(standing(job, 'CLOSED')) end
  if latest_attempt(job, row) ~= attempt then return reply(standing(job, 'STALE')) end
  local held = read_claim(job, range)
  local data = string.sub(args[6], 1, -2) .. string.format(',"claim":%d}', held and held.claim or 0)
  local seq = close_row(job, by, {
    row = row, kind = 'request.cancelled', data = data, payload = args[7], prompt_tokens = 0, completion_tokens = 0})
  acknowledge_full(job, {[range] = true})
  set(job, 'ctl', seq, 'cmd:' .. cmd, seq)
  local done = standing(job, 'OK')
  done.seq, done.open = seq, job.rows - redis.call('BITCOUNT', keys[5])
  return reply(done)
end

register_small('sr_v1_control', control)
redis.register_function('sr_v1_cancel_row', cancel_row)
