-- Reading states, carrying them from one limit to another, and writing them.

-- A key that somebody else uses.
local FOREIGN = { kind = 0, shape = 0 }

-- The state that is stored as `raw`; `is_whole` unless there may be more of it.
local function read(raw, name, is_whole)
  local kind = byte(raw)
  local state
  if kind and kind >= LEVEL and kind <= LOG and #raw >= 11 then state = kind_of(kind).read(raw, name, is_whole) end
  return state or FOREIGN
end

-- Loads the state of one key.
local function load(name, kind)
  local state
  if kind == SLOTS then state = kind_of(SLOTS).load(name) end
  if state == nil then
    local raw = try('GETRANGE', name, 0, PAGE - 1)
    if raw == '' then
      state = false
    elseif type(raw) == 'string' then
      state = read(raw, name, #raw < PAGE)
    else
      -- No string: leases, or something of somebody else's.
      state = kind_of(SLOTS).load(name)
      if state == nil then state = FOREIGN end
    end
  end
  states[name], stored[name] = state, state and true
  return state
end

-- What is known of a key.
local function known(name, kind)
  local state = states[name]
  if state == nil then return load(name, kind) end
  if state and state.kept_as and kind_of(state.kind).is_blank(state) then return false end
  return state
end

-- Loads the states of many keys that are strings, if they are what they were.
local function load_many(names)
  for from = 1, #names, 4000 do
    local to = min(from + 3999, #names)
    local raws = call('MGET', unpack(names, from, to))
    local missing = {}
    for index = from, to do
      local name, raw = names[index], raws[index - from + 1]
      if raw then
        states[name], stored[name] = read(raw, name, true), true
      else
        states[name] = false
        missing[#missing + 1] = name
      end
    end
    -- MGET says nothing about keys that are not strings.
    if #missing > 0 and call('EXISTS', unpack(missing)) > 0 then
      for _, name in ipairs(missing) do
        states[name] = nil
        load(name)
      end
    end
  end
end

-- What `drops` are worth where a token has `to` of them instead of `from`, rounded up, or `most` if that is less. The
-- product may have 98 bits, so it is built seven bits at a time, with the quotient and remainder of what is there so far.
local function convert(drops, from, to, most)
  if from == to then return min(drops, most) end
  local whole = floor(drops / from) * to
  if whole >= most then return most end
  local rest, quotient, remainder = drops % from, 0, 0
  for digit = 6, 0, -1 do
    remainder = remainder * 128 + rest * (floor(to / 128 ^ digit) % 128)
    local times = floor(remainder / from)
    quotient, remainder = quotient * 128 + times, remainder - times * from
  end
  if remainder > 0 then quotient = quotient + 1 end
  return min(whole + quotient, most)
end

-- What a key that stands at `state` has under a limit of another shape.
local function carried(limit, state)
  local of_limit = limit.of
  local new = of_limit.fresh(limit)
  if limit.kind == SLOTS or state.kind == SLOTS then return new end
  if limit.kind == LOG and state.kind == LOG then return of_limit.rewindowed(limit, state) end
  if limit.kind <= SHAPER and state.kind <= SHAPER then
    new.spent = convert(state.spent, state.a, limit.a, 2 * limit.a * limit.capacity)
    return new
  end
  of_limit.charge(limit, new, kind_of(state.kind).spent(state))
  return new
end

local function has_shape(state, limit)
  return state.shape == limit.shape and state.a == limit.a and state.b == limit.b
end

-- The state of a limit's key as it stands under the limit.
local function view(limit)
  local state = known(limit.name, limit.kind)
  if not state then return limit.of.fresh(limit) end
  if has_shape(state, limit) then return state end
  return carried(limit, state)
end

-- Writes what has changed. A key that owes nothing equals one that was never seen.
local function write_changes()
  for _, name in ipairs(changed) do
    local state = states[name]
    if state and state.kept_as then
      state.kept_as = nil
      local of = kind_of(state.kind)
      if of.is_blank(state) then
        if stored[name] then call('DEL', name) end
      else
        local raw, counts_for = of.write(state, name)
        if raw then call('SET', name, raw, 'PX', life(counts_for)) end
      end
    end
  end
end
