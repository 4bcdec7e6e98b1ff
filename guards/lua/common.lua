-- Prepended to every script of the ledger. All keys belong to one tenant and lie in one hash slot.
--   KEYS[1] leases   zset  search id -> end of its lease, ms
--   KEYS[2] holds    hash  search id -> "tokens:progress"; "*" -> sum of the tokens
--   KEYS[3] windows  hash  window name -> "start of the window, ms:tokens used"
--   KEYS[4] markers  zset  settled search id -> when it may be forgotten, ms
--   KEYS[5] charges  hash  settled search id -> "charged:reserved:at, ms:settled|swept"
--   ARGV[1] now, ms since the epoch, or "" for the server's clock (tests set it)
-- Holds and leases outlive their use by RETENTION only: after it, no window could still take their charge.
local LEASES, HOLDS, WINDOWS, MARKERS, CHARGES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local MINUTE, DAY = 60000, 86400000
local RETENTION, MARKER_TTL, MAX_MARKERS, BATCH = 32 * DAY, 2 * DAY, 100000, 200

local function server_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local now = ARGV[1] == '' and server_ms() or tonumber(ARGV[1])

-- tostring() would round beyond 14 digits.
local function int(n) return string.format('%.0f', n) end

-- Day of the month (1..31) of a day counted from 1970-01-01: proleptic Gregorian calendar in eras of
-- 400 years that begin on 1 March.
local function day_of_month(days)
  local z = days + 719468
  local doe = z - math.floor(z / 146097) * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local month = math.floor((5 * doy + 2) / 153)
  return doy - math.floor((153 * month + 2) / 5) + 1
end

local function open_windows()
  local minute = math.floor(now / MINUTE) * MINUTE
  local today = math.floor(now / DAY)
  local first = today - day_of_month(today) + 1
  local next_first = first + 31 - day_of_month(first + 31) + 1
  local windows = {
    { name = 'minute', start = minute, stop = minute + MINUTE },
    { name = 'day', start = today * DAY, stop = (today + 1) * DAY },
    { name = 'month', start = first * DAY, stop = next_first * DAY },
  }
  local stored = redis.call('HMGET', WINDOWS, 'minute', 'day', 'month')
  for i, w in ipairs(windows) do
    local start, used = string.match(stored[i] or '', '^(%d+):(%d+)$')
    w.used = tonumber(start) == w.start and tonumber(used) or 0
  end
  return windows
end
local windows = open_windows()

-- Adds n (may be negative) to the windows that are open now and were open at `at`.
local function charge(at, n)
  if n == 0 then return end
  for _, w in ipairs(windows) do
    if at >= w.start then
      w.used = math.max(0, w.used + n)
      redis.call('HSET', WINDOWS, w.name, int(w.start) .. ':' .. int(w.used))
    end
  end
  redis.call('PEXPIRE', WINDOWS, int(windows[3].stop - now))
end

local function reserved() return tonumber(redis.call('HGET', HOLDS, '*') or '0') end

local function put_hold(id, lease_end, tokens, progress)
  redis.call('ZADD', LEASES, int(lease_end), id)
  redis.call('HSET', HOLDS, id, int(tokens) .. ':' .. int(progress))
  redis.call('PEXPIRE', LEASES, int(RETENTION))
  redis.call('PEXPIRE', HOLDS, int(RETENTION))
end

local function get_hold(id)
  local tokens, progress = string.match(redis.call('HGET', HOLDS, id) or '', '^(%d+):(%d+)$')
  return tonumber(tokens or '0'), tonumber(progress or '0')
end

local function drop_hold(id, tokens)
  redis.call('ZREM', LEASES, id)
  if redis.call('ZCARD', LEASES) == 0 then
    redis.call('DEL', HOLDS)
  else
    redis.call('HDEL', HOLDS, id)
    redis.call('HINCRBY', HOLDS, '*', int(-tokens))
  end
end

local function put_marker(id, charged, tokens, at, state)
  redis.call('ZADD', MARKERS, int(now + MARKER_TTL), id)
  redis.call('HSET', CHARGES, id, int(charged) .. ':' .. int(tokens) .. ':' .. int(at) .. ':' .. state)
  redis.call('PEXPIRE', MARKERS, int(MARKER_TTL))
  redis.call('PEXPIRE', CHARGES, int(MARKER_TTL))
end

-- nil, or what was charged, what had been reserved, when, and the state.
local function get_marker(id)
  local charged, tokens, at, state = string.match(redis.call('HGET', CHARGES, id) or '', '^(%d+):(%d+):(%d+):(%a+)$')
  if not charged then return nil end
  return { charged = tonumber(charged), tokens = tonumber(tokens), at = tonumber(at), state = state }
end

-- A dead holder pays what it last reported, at the moment its lease ended.
local function bury(id, lease_end)
  local tokens, progress = get_hold(id)
  drop_hold(id, tokens)
  charge(lease_end, progress)
  put_marker(id, progress, tokens, lease_end, 'swept')
end

local function sweep()
  local dead = redis.call('ZRANGEBYSCORE', LEASES, '-inf', int(now), 'WITHSCORES', 'LIMIT', 0, BATCH)
  for i = 1, #dead, 2 do bury(dead[i], tonumber(dead[i + 1])) end
  local old = redis.call('ZRANGEBYSCORE', MARKERS, '-inf', int(now), 'LIMIT', 0, BATCH)
  if #old == 0 and redis.call('ZCARD', MARKERS) > MAX_MARKERS then
    old = redis.call('ZRANGE', MARKERS, 0, BATCH - 1)
  end
  for _, id in ipairs(old) do
    redis.call('ZREM', MARKERS, id)
    redis.call('HDEL', CHARGES, id)
  end
end
sweep()

-- The sweep is bounded; this says whether expired holds are left that would distort a decision.
local function backlog() return redis.call('ZCOUNT', LEASES, '-inf', int(now)) > 0 end

-- End of the lease of a living hold, or nil. A hold whose lease has run out is buried, swept or not.
local function living(id)
  local score = redis.call('ZSCORE', LEASES, id)
  if not score then return nil end
  local lease_end = tonumber(score)
  if lease_end > now then return lease_end end
  bury(id, lease_end)
  return nil
end

local function seconds_until(ms) return math.max(1, math.ceil((ms - now) / 1000)) end
