---------------------------------------------------------------------------------------------------
-- held   ARGV worker      OK others      what other workers hold, the most open rows first; at most 8
-- An idle worker asks before it splits. Nothing is written.
---------------------------------------------------------------------------------------------------
local MAX_OTHERS = 8

local function held(keys, args)
  local job = open(keys)
  local others = {}
  for _, pending in ipairs(redis.call('XPENDING', keys[3], GROUP, '-', '+', 1000)) do
    local range, worker = pending[1], pending[2]
    local owner = read_claim(job, range)
    if worker ~= args[1] and redis.call('EXISTS', job.lease_prefix .. worker) == 1 then
      local spec = cjson.decode(read_range(job, range))
      local one = {range = range, claim = owner.claim, worker = worker, first = spec.first}
      one.open = num_open(job, spec, num_rows(spec, owner))
      if one.open > 0 then others[#others + 1] = one end
    end
  end
  table.sort(others, function(a, b) return a.open > b.open or (a.open == b.open and a.first < b.first) end)
  local found = standing(job, 'OK')
  found.others = {}
  for i = 1, math.min(#others, MAX_OTHERS) do
    local owner = read_claim(job, others[i].range)
    others[i].done = describe_claim(job, others[i].range, owner).done
    found.others[i] = others[i]
  end
  return reply(found)
end

---------------------------------------------------------------------------------------------------
-- split   ARGV worker epoch token range claim cut      OK range | STALE | FRESH | EXPIRED | FENCED | PAUSED | ENDED
-- Rows from `cut` on leave a range of another worker and become a range of the caller. The old range keeps its id,
-- its claim and its other rows, so nothing that runs is disturbed; its owner learns of it from its next reply (`cuts`).
-- STALE: that claim is over, or no such row is left. FRESH: there are ranges that nobody has, claim one of those.
---------------------------------------------------------------------------------------------------
local function has_fresh(keys)
  local last = redis.call('XREVRANGE', keys[3], '+', '-', 'COUNT', 1)[1][1]
  local group = redis.call('XINFO', 'GROUPS', keys[3])[1]
  for i = 1, #group, 2 do
    if group[i] == 'last-delivered-id' then return group[i + 1] ~= last, last end
  end
end

local function narrow(job, range, spec, owner, cut)
  owner.limit = cut
  write_claim(job, range, owner)
  redis.call('HSET', job.keys[6], 'cut:' .. owner.worker,
    (redis.call('HGET', job.keys[6], 'cut:' .. owner.worker) or '') .. string.format('%s=%d ', range, cut))
  if num_open(job, spec, cut - spec.first) == 0 then redis.call('XACK', job.keys[3], GROUP, range) end
end

local function cuttable(job, worker, range, claim, cut)
  local owner, text = read_claim(job, range), read_range(job, range)
  if not owner or not text or owner.claim ~= claim or owner.worker == worker then return nil end
  if #redis.call('XPENDING', job.keys[3], GROUP, range, range, 1, owner.worker) == 0 then return nil end
  local spec = cjson.decode(text)
  local last = spec.first + num_rows(spec, owner)
  if cut < spec.first or cut >= last then return nil end
  local rest = {first = cut, attempts = spec.attempts}
  if num_open(job, rest, last - cut) == 0 then return nil end
  return owner, spec, last
end

local function split(keys, args)
  local worker, epoch, range, cut = args[1], args[2], args[4], integer(args[6], 'cut')
  local job = open(keys)
  local fault = lease_fault(job, epoch, args[3])
  if fault then return reply(standing(job, fault)) end
  if job.status ~= 'in_progress' then return reply(standing(job, 'ENDED')) end
  if job.paused then return reply(standing(job, 'PAUSED')) end
  local fresh, newest = has_fresh(keys)
  if fresh then return reply(standing(job, 'FRESH')) end
  local owner, spec, last = cuttable(job, worker, range, integer(args[5], 'claim'), cut)
  if not owner then return reply(standing(job, 'STALE')) end

  meet(job)
  local previous = succession(owner)
  narrow(job, range, spec, owner, cut)
  local rest = cjson.decode(read_range(job, range))
  rest.skip, rest.first, rest.count = (spec.skip or 0) + cut - spec.first, cut, last - cut
  local id = string.format('%d-0', tonumber(string.match(newest, '^(%d+)')) + 1)
  redis.call('XADD', keys[3], id, 'range', cjson.encode(rest))
  redis.call('XREADGROUP', 'GROUP', GROUP, worker, 'COUNT', 1, 'STREAMS', keys[3], '>')
  local mine = {claim = redis.call('HINCRBY', keys[6], 'claim', 1), worker = worker, previous = previous,
    since = last_step(job, worker)}
  write_claim(job, id, mine)
  append_claimed(job, id, rest, mine, epoch, owner.worker)
  return reply(describe_claim(job, id, mine))
end

---------------------------------------------------------------------------------------------------
-- give_back   ARGV worker epoch token data range...      OK given | EXPIRED | FENCED
-- Ranges that this worker cannot run go to whoever claims next, under a new claim: late writes of the giver are
-- STALE. data: the notice that says why, appended if anything was given.
---------------------------------------------------------------------------------------------------
local NOBODY = 'nobody'

local function give_back(keys, args)
  local worker, data = args[1], args[4]
  object(data, 'data')
  local job = open(keys)
  local fault = lease_fault(job, args[2], args[3])
  if fault then return reply(standing(job, fault)) end
  local given = {}
  for i = 5, #args do
    if #redis.call('XPENDING', keys[3], GROUP, args[i], args[i], 1, worker) == 1 then given[#given + 1] = args[i] end
  end
  if #given > 0 then append(job, 'notice', worker, data) end
  for _, range in ipairs(given) do
    local owner = read_claim(job, range)
    redis.call('XCLAIM', keys[3], GROUP, NOBODY, 0, range, 'JUSTID')
    owner.claim = redis.call('HINCRBY', keys[6], 'claim', 1)
    write_claim(job, range, owner)
  end
  local done = standing(job, 'OK')
  done.given = given
  return reply(done)
end

---------------------------------------------------------------------------------------------------
-- forget   ARGV worker ttl_ms      OK | HELD | ALIVE      KEYS 7 and 8 are those of `worker`
-- The tokens of a worker that is gone go too, `ttl_ms` from now, once no open range was ever its own.
---------------------------------------------------------------------------------------------------
local function forget(keys, args)
  local worker, ttl_ms = args[1], integer(args[2], 'ttl_ms')
  local job = open(keys)
  if redis.call('EXISTS', keys[7]) == 1 then return reply(standing(job, 'ALIVE')) end
  local start = '-'
  repeat
    local page = redis.call('XPENDING', keys[3], GROUP, start, '+', 100)
    for _, pending in ipairs(page) do
      local held_by = read_claim(job, pending[1])
      local names = ',' .. succession(held_by)
      if string.find(names, ',' .. worker .. '@', 1, true) then return reply(standing(job, 'HELD')) end
      start = '(' .. pending[1]
    end
  until #page < 100
  redis.call('PEXPIRE', keys[8], ttl_ms)
  return reply(standing(job, 'OK'))
end

redis.register_function('sr_v1_held', held)
redis.register_function('sr_v1_split', split)
redis.register_function('sr_v1_give_back', give_back)
redis.register_function('sr_v1_forget', forget)
