-- KEYS: tenants, keys, keys of the tenant
-- ARGV: tenant id, most keys, key id, "tenant id:digest", when the key was made
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 'unknown' end
if redis.call('HLEN', KEYS[3]) >= tonumber(ARGV[2]) then return 'full' end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.call('HSET', KEYS[3], ARGV[3], ARGV[5])
return 'added'
