-- KEYS: tenants, names, order, keys, keys of the tenant
-- ARGV: tenant id, name, record, most tenants, key id, "tenant id:digest", when the key was made
if redis.call('HEXISTS', KEYS[2], ARGV[2]) == 1 then return 'exists' end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then return 'full' end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[1])
redis.call('ZADD', KEYS[3], 0, ARGV[2])
redis.call('HSET', KEYS[4], ARGV[5], ARGV[6])
redis.call('HSET', KEYS[5], ARGV[5], ARGV[7])
return 'added'
