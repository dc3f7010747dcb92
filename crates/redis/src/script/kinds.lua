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

-- Who holds what nobody will give back.
local ANONYMOUS = rep('\0', 16)

-- How long, in Redis' milliseconds, a key lives that counts for `micros`.
local function life(micros)
  return format('%d', ceil(micros / 1000) + slack)
end

-- Sees to it that the state of a key is written.
local function keep(name, state)
  states[name] = state
  if not state.is_changed then
    state.is_changed = true
    changed[#changed + 1] = name
  end
end

