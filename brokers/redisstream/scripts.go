package redisstream

import "github.com/redis/go-redis/v9"

// What must not be interrupted between a look and an act is a script. KEYS[1] is the stream, ARGV[1] the group.

// claimScript takes at most ARGV[4] pending entries of the member ARGV[3] for ARGV[2], unless its key KEYS[2]
// is there. It returns {id, fields, deliveries} of each. An entry that is not in the stream any more is forgotten by
// the server, and is not among them.
var claimScript = redis.NewScript(`
if #KEYS > 1 and redis.call('EXISTS', KEYS[2]) == 1 then return {} end
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[4], ARGV[3])
local claimed = {}
for _, p in ipairs(pending) do
  local got = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, p[1], 'RETRYCOUNT', p[4] + 1)
  if #got > 0 and got[1] then claimed[#claimed + 1] = {got[1][1], got[1][2], p[4] + 1} end
end
return claimed`)

// moveScript gives pending entries of ARGV[2] to ARGV[3]: {id, deliveries} from ARGV[4] on. What is another's by now is
// left alone. It returns the ids of those it moved.
var moveScript = redis.NewScript(`
local moved = {}
for i = 4, #ARGV, 2 do
  if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2]) > 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[i], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
    moved[#moved + 1] = ARGV[i]
  end
end
return moved`)

// inheritScript gives all that the member ARGV[2] has, from an earlier run of it, to ARGV[3], at most ARGV[4] at a time,
// and returns how many it gave.
var inheritScript = redis.NewScript(`
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[4], ARGV[2])
for _, p in ipairs(pending) do
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, p[1], 'RETRYCOUNT', p[4], 'JUSTID')
end
return #pending`)

// forgetScript removes the member ARGV[2] from the group if it has nothing pending and its key KEYS[2] is not there.
var forgetScript = redis.NewScript(`
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1`)

// trimScript trims what is older than the id ARGV[1] and was acked by every group. A stream without a group keeps all: nobody has
// read it.
var trimScript = redis.NewScript(`
local function number(id)
  local ms, n = string.match(id, '(%d+)-(%d+)')
  return tonumber(ms), tonumber(n)
end
local function least(a, b)
  local ams, an = number(a)
  local bms, bn = number(b)
  if ams < bms or ams == bms and an < bn then return a end
  return b
end
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
if #groups == 0 then return 0 end
local from = ARGV[1]
for _, g in ipairs(groups) do
  local field = {}
  for i = 1, #g, 2 do field[g[i]] = g[i + 1] end
  from = least(from, field['last-delivered-id'])
  if field['pending'] > 0 then
    from = least(from, redis.call('XPENDING', KEYS[1], field['name'])[2])
  end
end
return redis.call('XTRIM', KEYS[1], 'MINID', '~', from)`)
