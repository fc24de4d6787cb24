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

redis.register_function('sr_v1_control', control)
