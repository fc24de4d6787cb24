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

redis.register_function('sr_v1_claim', claim)
