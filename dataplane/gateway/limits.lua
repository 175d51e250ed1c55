-- The limits of tenants and keys, where all gateways meet. One script, so that a reservation is atomic: it passes every
-- limit and is counted in all of them, or it is counted in none. windows.py states the rule; this is the same rule.
--
-- A window is a hash: bucket (half seconds since the epoch) -> amount. Leases are a sorted set: request id -> when the
-- lease ends, in ms. Time is Redis's own, one clock for all gateways.
--
-- ARGV[1] operation   ARGV[2] the time in ms, empty for Redis's own (tests bring theirs)
-- reserve  KEYS  for each scope: requests window, tokens window, leases
--          ARGV  request id, tokens, lease ms, then for each scope: limits (requests, tokens, concurrent; -1 is none)
--                and what the asking gateway knows to be in use of each, in case Redis has forgotten
--          reply 1 or 0, bucket, refusing limit (counted from 0, -1 is none), ms to wait, then for each scope and kind:
--                in use, ms until reset
-- settle   KEYS  tokens windows, then leases   ARGV  request id, bucket of the reservation, change, number of windows
-- hold     KEYS  leases   ARGV  lease ms, members...; reply how many hold a lease
local BUCKET_MS, WINDOW_BUCKETS, BUSY_RETRY_MS = 500, 120, 1000
local WINDOW_MS = BUCKET_MS * WINDOW_BUCKETS
local REQUESTS, TOKENS, CONCURRENT = 1, 2, 3

local function clock()
  if ARGV[2] ~= '' then return tonumber(ARGV[2]) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local now = clock()
local now_bucket = math.floor(now / BUCKET_MS)

local function leaves_in(bucket)
  return (bucket + 1 + WINDOW_BUCKETS) * BUCKET_MS - now
end

local function slide(key)
  local window = { buckets = {}, amounts = {}, used = 0 }
  local raw, gone = redis.call('HGETALL', key), {}
  for i = 1, #raw, 2 do
    local bucket = tonumber(raw[i])
    -- A bucket of the future is from before a step of the clock; nobody can wait for it.
    if bucket < now_bucket - WINDOW_BUCKETS or bucket > now_bucket + 1 then
      gone[#gone + 1] = raw[i]
    else
      window.buckets[#window.buckets + 1] = bucket
      window.amounts[bucket] = tonumber(raw[i + 1])
      window.used = window.used + window.amounts[bucket]
    end
  end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  table.sort(window.buckets)
  return window
end

local function window_wait(window, amount, limit)
  local excess = window.used + amount - limit
  if excess <= 0 then return 0 end
  for _, bucket in ipairs(window.buckets) do
    excess = excess - window.amounts[bucket]
    if excess <= 0 then return leaves_in(bucket) end
  end
  return WINDOW_MS
end

local function count(key, bucket, amount)
  redis.call('HINCRBY', key, bucket, amount)
  redis.call('PEXPIRE', key, WINDOW_MS + 2 * BUCKET_MS)
end

local function holders(key, lease_ms)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  redis.call('ZREMRANGEBYSCORE', key, now + lease_ms + BUCKET_MS, '+inf')
  return redis.call('ZCARD', key)
end

local function hold(key, lease_ms, member)
  redis.call('ZADD', key, now + lease_ms, member)
  redis.call('PEXPIRE', key, lease_ms)
end

-- What one limit says: how much is in use, in how many ms that is forgotten, how long the request has to wait.
local function judge(kind, key, amount, limit, known, lease_ms)
  if limit < 0 then return { used = 0, reset = 0, wait = 0 } end
  local used, reset, wait = 0, 0, 0
  if kind == CONCURRENT then
    used = holders(key, lease_ms)
  else
    local window = slide(key)
    used = window.used
    if used > 0 then reset = leaves_in(window.buckets[#window.buckets]) end
    wait = window_wait(window, amount, limit)
  end
  used = math.max(used, known)
  if wait == 0 and used + amount > limit then wait = BUSY_RETRY_MS end
  return { used = used, reset = reset, wait = wait }
end

local function reserve()
  local request, tokens, lease_ms = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
  local amounts = { 1, tokens, 1 }
  local verdicts, refusing, wait = {}, -1, 0
  for i = 1, #KEYS do
    local scope, kind = math.floor((i - 1) / 3), (i - 1) % 3 + 1
    local at = 5 + scope * 6 + kind
    verdicts[i] = judge(kind, KEYS[i], amounts[kind], tonumber(ARGV[at]), tonumber(ARGV[at + 3]), lease_ms)
    verdicts[i].limit = tonumber(ARGV[at])
    if verdicts[i].wait > wait then refusing, wait = i - 1, verdicts[i].wait end
  end
  local reply = { refusing < 0 and 1 or 0, now_bucket, refusing, wait }
  for i, verdict in ipairs(verdicts) do
    if refusing < 0 and verdict.limit >= 0 then
      local kind = (i - 1) % 3 + 1
      if kind == CONCURRENT then hold(KEYS[i], lease_ms, request) else count(KEYS[i], now_bucket, amounts[kind]) end
      verdict.used = verdict.used + amounts[kind]
      if kind ~= CONCURRENT then verdict.reset = leaves_in(now_bucket) end
    end
    reply[#reply + 1] = verdict.used
    reply[#reply + 1] = verdict.reset
  end
  return reply
end

local function settle()
  local request, bucket, change, windows = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
  for i, key in ipairs(KEYS) do
    if i > windows then
      redis.call('ZREM', key, request)
    elseif slide(key).amounts[bucket] then
      count(key, bucket, change)
    elseif change > 0 then
      count(key, now_bucket, change)
    end
  end
  return 1
end

local function hold_all()
  local lease_ms = tonumber(ARGV[3])
  for i = 4, #ARGV do hold(KEYS[1], lease_ms, ARGV[i]) end
  return holders(KEYS[1], lease_ms)
end

return ({ reserve = reserve, settle = settle, hold = hold_all })[ARGV[1]]()
