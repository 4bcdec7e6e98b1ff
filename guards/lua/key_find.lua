-- KEYS: tenants, keys; ARGV: key id. Reply: digest and tenant record, "" where there is none.
local tenant, digest = string.match(redis.call('HGET', KEYS[2], ARGV[1]) or '', '^([^:]+):(%x+)$')
if not tenant then return { '', '' } end
return { digest, redis.call('HGET', KEYS[1], tenant) or '' }
