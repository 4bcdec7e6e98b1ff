-- KEYS: tenants, names, order, keys, keys of the tenant; ARGV: tenant id
local record = redis.call('HGET', KEYS[1], ARGV[1])
if not record then return 0 end
local name = cjson.decode(record).name
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], name)
redis.call('ZREM', KEYS[3], name)
for _, id in ipairs(redis.call('HKEYS', KEYS[5])) do redis.call('HDEL', KEYS[4], id) end
redis.call('DEL', KEYS[5])
return 1
