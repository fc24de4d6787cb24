---------------------------------------------------------------------------------------------------
-- repair   ARGV by last_id bitmap  F (field value)*F  L (field least)*L  A (row attempt)*A  worker...
--          OK | ALIVE worker | STALE | NOJOB
-- Derived state as a fold over the whole log has it. last_id: the last entry that was folded. Fields are replaced,
-- those with a least value are raised to it, all others stay. Refused while any worker of the job holds a lease.
---------------------------------------------------------------------------------------------------
local STATUS = {validating = true, in_progress = true, cancelling = true,
  completed = true, failed = true, cancelled = true, expired = true}

local function parse_pairs(args, at)
  local pairs_found = {}
  for _ = 1, integer(args[at], 'fields') do
    pairs_found[#pairs_found + 1] = {args[at + 1], args[at + 2]}
    at = at + 2
  end
  return pairs_found, at + 1
end

local function living(job, workers)
  for _, worker in ipairs(workers) do
    if redis.call('EXISTS', job.lease_prefix .. worker) == 1 then return worker end
  end
  return nil
end

local function known_workers(job)
  local workers = {}
  for _, name in ipairs(redis.call('HKEYS', job.keys[6])) do
    workers[#workers + 1] = string.match(name, '^w:(.*)$')
  end
  return workers
end

local function repair(keys, args)
  local last_id, bitmap = args[2], args[3]
  local exact, at = parse_pairs(args, 4)
  local least, attempts, first_worker
  least, at = parse_pairs(args, at)
  attempts, first_worker = parse_pairs(args, at)
  local named = {}
  for _, pair in ipairs(exact) do named[pair[1]] = pair[2] end
  if not STATUS[named.status] then error('sr_v1: ' .. tostring(named.status) .. ' is no status') end
  if #bitmap > math.ceil(integer(named.rows, 'rows') / 8) then error('sr_v1: the bitmap is longer than the job') end
  for _, pair in ipairs(least) do integer(pair[2], pair[1]) end
  for _, pair in ipairs(attempts) do
    if integer(pair[1], 'row') >= tonumber(named.rows) or integer(pair[2], 'attempt') < 2 then
      error('sr_v1: row ' .. pair[1] .. ' has no attempt ' .. pair[2])
    end
  end
  local last = redis.call('XREVRANGE', keys[1], '+', '-', 'COUNT', 1)[1]
  if not last then return reply({s = 'NOJOB'}) end
  local job = open(keys)
  if last[1] ~= last_id then return reply(standing(job, 'STALE')) end
  local workers = known_workers(job)
  for i = first_worker, #args do workers[#workers + 1] = args[i] end
  local worker = living(job, workers)
  if worker then return reply({s = 'ALIVE', worker = worker, status = job.status}) end

  if bitmap == '' then redis.call('DEL', keys[5]) else redis.call('SET', keys[5], bitmap) end
  for _, pair in ipairs(exact) do set(job, pair[1], pair[2]) end
  for _, pair in ipairs(least) do
    local held = tonumber(redis.call('HGET', keys[6], pair[1]) or '')
    if not held or held < tonumber(pair[2]) then set(job, pair[1], pair[2]) end
  end
  for _, pair in ipairs(attempts) do redis.call('HSET', job.attempts, pair[1], pair[2]) end
  return reply({s = 'OK', status = named.status})
end

---------------------------------------------------------------------------------------------------
-- purge   ARGV worker...      OK keys | RUNNING | BROKEN
-- All keys of an ended job go in one step, so a crash leaves either the whole job or nothing of it. worker: those whose
-- step streams are to go besides the ones that meta names. BROKEN: there is a log and no meta that says it has ended.
---------------------------------------------------------------------------------------------------
local function purge(keys, args)
  local job = open(keys)
  if not job.status and job.seq > 0 then return reply({s = 'BROKEN'}) end
  if job.status and not ENDED[job.status] then return reply(standing(job, 'RUNNING')) end
  local prefix = string.match(keys[1], '^(.*):log$')
  local workers = known_workers(job)
  for i = 1, #args do workers[#workers + 1] = args[i] end
  local gone = 0
  for _, worker in ipairs(workers) do
    gone = gone + redis.call('UNLINK', prefix .. ':steps:' .. worker, job.lease_prefix .. worker)
  end
  for _, key in ipairs(keys) do gone = gone + redis.call('UNLINK', key) end
  for _, name in ipairs({'attempts', 'blobs', 'exporters'}) do gone = gone + redis.call('UNLINK', prefix .. ':' .. name) end
  return reply({s = 'OK', keys = gone})
end

redis.register_function('sr_v1_repair', repair)
redis.register_function('sr_v1_purge', purge)
