-- A range whose owner holds no lease, else nil and whether living owners hold others. What the caller cannot
-- run (`avoid`) is left to others.
local function orphan(job, worker, avoid)
  local start, busy = '-', false
  repeat
    local page = redis.call('XPENDING', job.keys[3], GROUP, start, '+', 100)
    for _, pending in ipairs(page) do
      if pending[2] ~= worker then
        if redis.call('EXISTS', job.lease_prefix .. pending[2]) == 1 then busy = true
        elseif not string.find(avoid, ' ' .. pending[1] .. ' ', 1, true) then return pending[1], true end
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

local function append_claimed(job, range, spec, held, epoch, from)
  append(job, 'range.claimed', held.worker, cjson.encode({
    range = range, claim = held.claim, worker = held.worker, epoch = tonumber(epoch),
    first = spec.first, count = num_rows(spec, held), from = from or cjson.null}))
end

---------------------------------------------------------------------------------------------------
-- claim   ARGV worker epoch token known avoid     OK range | NONE | BUSY | EXPIRED | FENCED | PAUSED | ENDED
-- known, avoid: ' id id ' of the ranges the caller holds, and of those it gave back because it cannot run them.
-- Half-finished ranges of dead workers come first. BUSY: all that is left is in the hands of living workers.
---------------------------------------------------------------------------------------------------
local function claim(keys, args)
  local worker, epoch, known, avoid = args[1], args[2], args[4], args[5]
  local job = open(keys)
  local fault = lease_fault(job, epoch, args[3])
  if fault then return reply(standing(job, fault)) end
  if job.status ~= 'in_progress' then return reply(standing(job, 'ENDED')) end
  if job.paused then return reply(standing(job, 'PAUSED')) end
  local mine = forgotten(job, worker, known)
  if mine then return reply(describe_claim(job, mine, read_claim(job, mine))) end
  local range, busy = orphan(job, worker, avoid)
  local before
  if range then
    before = read_claim(job, range)
    redis.call('XCLAIM', keys[3], GROUP, worker, 0, range, 'JUSTID')
    if before then
      mark_lost(job, before.worker, worker, 'lease expired')
      forget_consumer(job, before.worker)
    end
  else
    local fresh = redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', 1, 'STREAMS', keys[3], '>')
    if not fresh or not fresh[1] then return reply(standing(job, busy and 'BUSY' or 'NONE')) end
    range = fresh[1][2][1][1]
  end
  meet(job)
  local held = {claim = redis.call('HINCRBY', keys[6], 'claim', 1), worker = worker, previous = '',
    since = last_step(job, worker)}
  if before then held.previous, held.limit = succession(before), before.limit end
  write_claim(job, range, held)
  local spec = cjson.decode(read_range(job, range))
  append_claimed(job, range, spec, held, epoch, before and before.worker)
  return reply(describe_claim(job, range, held))
end

redis.register_function('sr_v1_claim', claim)
