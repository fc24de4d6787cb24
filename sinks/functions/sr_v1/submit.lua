---------------------------------------------------------------------------------------------------
-- submit   ARGV by data rows status range...        OK seq | EXISTS
---------------------------------------------------------------------------------------------------
local function submit(keys, args)
  local by, data, rows = args[1], args[2], integer(args[3], 'rows')
  local spec = object(data, 'data').spec
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
  keep_settings(job, type(spec) == 'table' and spec or {})
  return reply({s = 'OK', seq = job.seq})
end

redis.register_function('sr_v1_submit', submit)
