-- ARGV: now, search id, tokens, lease in ms, most holds, limits of minute, day and month ("" for none)
local id, tokens, lease_end, max_holds = ARGV[2], tonumber(ARGV[3]), now + tonumber(ARGV[4]), tonumber(ARGV[5])
for i, w in ipairs(windows) do w.limit = tonumber(ARGV[5 + i]) end

local function granted(size)
  local reply, held = { 'granted', size }, reserved()
  for _, w in ipairs(windows) do
    table.insert(reply, w.limit and math.max(0, w.limit - w.used - held) or -1)
  end
  return reply
end

local current = living(id)
if current then
  local size, progress = get_hold(id)
  put_hold(id, math.max(current, lease_end), size, progress)
  return granted(size)
end
if get_marker(id) then return { 'settled' } end
if backlog() then return { 'again' } end

local held = reserved()
local function denied(w, retry_after_s, why)
  return { 'denied', w.name, w.limit, w.used, held, retry_after_s, why }
end

for _, w in ipairs(windows) do
  if w.limit == 0 then return denied(w, 0, 'suspended') end
end
local small
for _, w in ipairs(windows) do
  if w.limit and tokens > w.limit and not (small and small.limit <= w.limit) then small = w end
end
if small then return denied(small, 0, 'never') end

local in_flight = redis.call('ZCARD', LEASES)
if in_flight >= max_holds then
  return { 'denied', 'in_flight', max_holds, 0, in_flight, 1, 'full' }
end

local blocking, wait
for _, w in ipairs(windows) do
  if w.limit and w.used + held + tokens > w.limit then
    local seconds = seconds_until(w.stop)
    if w.used + tokens <= w.limit then
      -- Only holds are in the way, and all of those are settled, renewed or dead by the last lease's end.
      local last = redis.call('ZRANGE', LEASES, -1, -1, 'WITHSCORES')
      seconds = math.min(seconds, seconds_until(tonumber(last[2])))
    end
    if not wait or seconds > wait then blocking, wait = w, seconds end
  end
end
if blocking then return denied(blocking, wait, 'full') end

put_hold(id, lease_end, tokens, 0)
redis.call('HINCRBY', HOLDS, '*', int(tokens))
return granted(tokens)
