-- ARGV: now, search id, tokens used so far, lease in ms
local id, used, lease_end = ARGV[2], tonumber(ARGV[3]), now + tonumber(ARGV[4])
local current = living(id)
if not current then return { 'gone' } end
-- Renewals may overtake one another; neither lease nor progress goes back.
local tokens, progress = get_hold(id)
put_hold(id, math.max(current, lease_end), tokens, math.max(progress, used))
return { 'renewed' }
