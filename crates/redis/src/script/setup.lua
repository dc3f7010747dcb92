-- Decides many requests in one call, all at one instant. Numbers are whole and never pass 2^53, where doubles are exact;
-- what is computed is what tidegate-core's limits compute, to the last microsecond.
--
--   KEYS     the keys of all requests, one request after the other
--   ARGV[1]  the present instant in microseconds, or '' to ask the server
--   ARGV[2…] one body for each request
--   returns  one reply for each request
--
-- A body begins with the operation, how many of KEYS are the request's own, how many of those (the first ones) are
-- states that are read whole, and how many charges follow. States are read once, decided on in memory, and written once
-- at the end, however many requests of the call share them.
local call, try = redis.call, redis.pcall
local pack, unpack_from = struct.pack, struct.unpack
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local sub, byte, rep = string.sub, string.byte, string.rep

local EXACT = 9007199254740992
local LAST = EXACT - 1
local WORD = 4294967296

-- Outcomes, as replies name them.
local ALLOW, DENY, NEVER = 0, 1, 2

-- What limits are called in bodies and states. A shaper's state is a GCRA's.
local LEVEL, TAT, SHAPER, EVERY, CALENDAR, SLIDING, LOG, SLOTS = 1, 2, 3, 4, 5, 6, 7, 8

-- Who holds what nobody will give back.
local ANONYMOUS = rep('\0', 16)

local now, slack = ARGV[1], 86400000
if now == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
  -- One millisecond for the fraction that Redis does not count, one for a reading of its clock just before this one.
  slack = 2
else
  -- Redis' clock says nothing about somebody else's: what their clock needs is kept for a day longer.
  now = tonumber(now)
end

-- How long, in Redis' milliseconds, a key lives that counts for `micros`.
local function life(micros)
  return ceil(micros / 1000) + slack
end

-- What is known of each key: nil if nothing yet, false if there is none, otherwise its state.
local states = {}
-- The keys that Redis holds, and those to be written at the end.
local stored, changed = {}, {}

-- What each kind of limit can do; most are made when they are first needed.
local kinds, makers = {}, {}
local function kind_of(kind)
  local known = kinds[kind]
  if not known then
    known = makers[kind]()
    kinds[kind] = known
  end
  return known
end

local function keep(name, state)
  states[name] = state
  if not state.kept_as then
    state.kept_as = name
    changed[#changed + 1] = name
  end
end
