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
    job.clock = job.time
    set(job, 'status', 'in_progress', 'started', job.time, 'clock', job.time)
  end
  meet(job)
  epoch = redis.call('HINCRBY', keys[6], 'epoch', 1)
  local rest = string.sub(data, 2)
  append(job, 'worker.joined', worker,
    '{"worker":"' .. worker .. '","epoch":' .. epoch .. (rest == '}' and '' or ',') .. rest)
  redis.call('SET', keys[7], epoch .. ':' .. token, 'PX', LEASE_MS)
  set(job, 'w:' .. worker, 'joined')
  -- What it holds is described below as splits left it, and its tokens may have been given a time to go.
  redis.call('HDEL', keys[6], 'cut:' .. worker, 'rcut:' .. worker)
  redis.call('PERSIST', keys[8])
  return reply(joined_as(job, worker, epoch))
end

---------------------------------------------------------------------------------------------------
-- beat   ARGV epoch token [worker progress]      OK | EXPIRED | FENCED
-- progress: what the worker does while it cannot flush, as the data of such an event.
---------------------------------------------------------------------------------------------------
local function beat(keys, args)
  local worker, progress = args[3], args[4]
  if progress then object(progress, 'progress') end
  local job = open(keys)
  local fault = lease_fault(job, args[1], args[2])
  if not fault then
    redis.call('PEXPIRE', keys[7], LEASE_MS)
    if progress and not ENDED[job.status] then
      append(job, 'progress', worker, progress)
      set(job, 'p:' .. worker, progress)
    end
  end
  return reply(standing(job, fault or 'OK'))
end

-- A consumer that owns nothing any more goes, or a job with many restarts would collect thousands. One that owns
-- ranges never does: they would go with it.
local function forget_consumer(job, worker)
  if #redis.call('XPENDING', job.keys[3], GROUP, '-', '+', 1, worker) > 0 then return end
  redis.call('XGROUP', 'DELCONSUMER', job.keys[3], GROUP, worker)
end

local function mark_lost(job, worker, by, reason)
  if redis.call('HGET', job.keys[6], 'w:' .. worker) ~= 'joined' then return end
  if redis.call('EXISTS', job.lease_prefix .. worker) == 1 then return end
  append(job, 'worker.lost', by, cjson.encode({worker = worker, reason = reason}))
  set(job, 'w:' .. worker, 'lost')
  redis.call('HDEL', job.keys[6], 'p:' .. worker)
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
  redis.call('HDEL', keys[6], 'p:' .. worker)
  forget_consumer(job, worker)
  return reply(standing(job, 'OK'))
end

local function lost(keys, args)
  local worker, by, reason = args[1], args[2], args[3]
  local job = open(keys)
  if not job.status then return reply({s = 'NOJOB'}) end
  local held = redis.call('DEL', keys[7])
  mark_lost(job, worker, by, reason)
  forget_consumer(job, worker)
  return reply(standing(job, held == 1 and 'OK' or 'GONE'))
end

redis.register_function('sr_v1_join', join)
register_small('sr_v1_beat', beat)
register_small('sr_v1_leave', leave)
register_small('sr_v1_lost', lost)
