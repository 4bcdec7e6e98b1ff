-- ARGV: now. Reply: living holds, reserved tokens, then used tokens and seconds to the reset of each window.
if backlog() then return { 'again' } end
local reply = { 'usage', redis.call('ZCARD', LEASES), reserved() }
for _, w in ipairs(windows) do
  table.insert(reply, w.used)
  table.insert(reply, seconds_until(w.stop))
end
return reply
