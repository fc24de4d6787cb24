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
-- purge      OK keys | RUNNING | BROKEN
-- All keys of an ended job go in one step, so a crash leaves either the whole job or nothing of it. Whose step streams
-- there are, meta says. BROKEN: there is a log and no meta that says it has ended.
---------------------------------------------------------------------------------------------------
local function purge(keys)
  local job = open(keys)
  if not job.status and job.seq > 0 then return reply({s = 'BROKEN'}) end
  if job.status and not ENDED[job.status] then return reply(standing(job, 'RUNNING')) end
  local prefix = string.match(keys[1], '^(.*):log$')
  local gone = 0
  for _, worker in ipairs(known_workers(job)) do
    gone = gone + redis.call('UNLINK', prefix .. ':steps:' .. worker, job.lease_prefix .. worker)
  end
  for _, key in ipairs(keys) do gone = gone + redis.call('UNLINK', key) end
  for _, name in ipairs({'attempts', 'blobs', 'exporters'}) do gone = gone + redis.call('UNLINK', prefix .. ':' .. name) end
  return reply({s = 'OK', keys = gone})
end

---------------------------------------------------------------------------------------------------
-- export   ARGV exporter seen until trim required...      OK trimmed held_by | STALE | NOJOB
-- An exporter says that it lives and has, durably, all results up to seq `until`. seen: the last entry it has read; STALE
-- if the log no longer holds it. trim '1': payloads that every exporter has go, down to the slowest one that was heard of
-- within a day. Nothing goes before each of `required` has said a word; held_by names who holds the rest.
---------------------------------------------------------------------------------------------------
local HOLD_MS = 24 * 3600 * 1000

local function slowest(job, exporters)
  local oldest, name
  local held = redis.call('HGETALL', exporters)
  for i = 1, #held, 2 do
    local time, seq = string.match(held[i + 1], '^(%d+) (%d+)$')
    if tonumber(job.time) - tonumber(time) < HOLD_MS and (not oldest or tonumber(seq) < oldest) then
      oldest, name = tonumber(seq), held[i]
    end
  end
  return oldest, name
end

local function drop_blobs(job, res, behind)
  if redis.call('EXISTS', job.blobs) == 0 then return end
  local start = '-'
  repeat
    local page = redis.call('XRANGE', res, start, '(' .. behind, 'COUNT', 100)
    for _, entry in ipairs(page) do
      local payload = entry[2][4]
      if string.sub(payload, 1, 7) == '{"ref":' then redis.call('HDEL', job.blobs, cjson.decode(payload).ref.sha256) end
      start = '(' .. entry[1]
    end
  until #page < 100
end

local function export(keys, args)
  local exporter, seen, trim = args[1], args[2], args[4] == '1'
  local done_until = integer(args[3], 'until')
  local job = open(keys)
  if not job.status then return reply({s = 'NOJOB'}) end
  local exporters = string.match(keys[1], '^(.*):log$') .. ':exporters'
  if #redis.call('XRANGE', keys[1], seen, seen) == 0 or done_until > job.seq then return reply(standing(job, 'STALE')) end
  redis.call('HSET', exporters, exporter, job.time .. ' ' .. string.format('%d', done_until))
  local done = standing(job, 'OK')
  done.trimmed = 0
  if not trim then return reply(done) end
  for i = 5, #args do
    if redis.call('HEXISTS', exporters, args[i]) == 0 then
      done.held_by = args[i]
      return reply(done)
    end
  end
  local oldest, name = slowest(job, exporters)
  local behind = string.format('%d-0', oldest + 1)
  drop_blobs(job, keys[2], behind)
  done.held_by, done.trimmed = name, redis.call('XTRIM', keys[2], 'MINID', behind)
  return reply(done)
end

redis.register_function('sr_v1_export', export)
redis.register_function('sr_v1_repair', repair)
redis.register_function('sr_v1_purge', purge)
