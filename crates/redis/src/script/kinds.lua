-- The operations of each kind of limit; most are created on first use.
local kinds, makers = {}, {}
local function kind_of(kind)
  local known = kinds[kind]
  if not known then
    known = makers[kind]()
    kinds[kind] = known
  end
  return known
end

-- The holder of charges that are never refunded.
local ANONYMOUS = rep('\0', 16)

-- The TTL in milliseconds of a key that counts for `micros`.
local function life(micros)
  return format('%d', ceil(micros / 1000) + slack)
end

-- Schedules the state of a key to be written.
local function keep(name, state)
  states[name] = state
  if not state.is_changed then
    state.is_changed = true
    changed[#changed + 1] = name
  end
end

