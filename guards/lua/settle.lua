-- ARGV: now, search id, tokens used in all
local id, used = ARGV[2], tonumber(ARGV[3])

local function settled(charged, tokens, already)
  return { 'settled', charged, already, charged > tokens and 1 or 0 }
end

if living(id) then
  local tokens = get_hold(id)
  drop_hold(id, tokens)
  charge(now, used)
  put_marker(id, used, tokens, now, 'settled')
  return settled(used, tokens, 0)
end

local marker = get_marker(id)
if marker and marker.state == 'settled' then return settled(marker.charged, marker.tokens, 1) end
local swept = marker or { charged = 0, tokens = 0, at = now }
if used >= swept.charged then
  charge(now, used - swept.charged)
else
  -- Give back only where it was taken: a window that has begun since never had that charge.
  charge(swept.at, used - swept.charged)
end
put_marker(id, used, swept.tokens, now, 'settled')
return settled(used, swept.tokens, 0)
