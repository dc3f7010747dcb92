-- Reading states, carrying them from one limit to another, and writing them.

-- A key that another program uses.
local FOREIGN = { kind = 0 }

-- The state that is stored as `raw`; `is_whole` unless there may be more of it.
local function read(raw, name, is_whole)
  local kind = byte(raw)
  local state
  if kind and #raw >= 11 then
    if kind >= LEVEL and kind <= LOG then
      state = kind_of(kind).read(raw, name, is_whole)
    elseif kind > LEASED and kind <= LEASED_IN_PART + SLIDING then
      record = record or recording()
      state = record.read(raw)
    end
  end
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
      -- No string: leases, or data of another program.
      state = kind_of(SLOTS).load(name)
      if state == nil then state = FOREIGN end
    end
  end
  states[name], stored[name] = state, state and true
  return state
end

-- The known state of a key. From now on only the library holds it.
local function known(name, kind)
  local state = states[name]
  if state == nil then
    local place = places[name]
    local raw = raws[place]
    if raw == nil then return load(name, kind) end
    state = raw and read(raw, name, true)
    states[name], stored[name], raws[place] = state, raw and true, nil
    if lives[place] then
      state.is_changed, lives[place], changed[#changed + 1] = true, nil, name
    end
  end
  if state and state.is_changed and (state.leased or kind_of(state.kind)).is_blank(state) then return false end
  return state
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

-- The state `state` carried over to a limit of another shape.
local function carried(limit, state)
  local of_limit = limit.own
  local new = of_limit.fresh(limit)
  if limit.kind == SLOTS or state.kind == SLOTS then return new end
  if limit.kind == LOG and state.kind == LOG then return of_limit.rewindowed(limit, state) end
  if limit.kind <= SHAPER and state.kind <= SHAPER then
    new.spent = convert(state.spent, state.a, limit.a, deepest(limit))
  else
    of_limit.charge(limit, new, kind_of(state.kind).spent(state))
  end
  return state.leased and state.leased.carry(limit, state, new) or new
end

local function has_shape(state, limit)
  return state.kind == limit.kind and state.a == limit.a and state.b == limit.b
end

-- The state of a key under its present limit, whose operations are from now on those for such a state.
local function view(limit)
  local state = known(limit.name, limit.kind)
  if not state then
    state = limit.own.fresh(limit)
  elseif not has_shape(state, limit) then
    state = carried(limit, state)
  end
  limit.of = state.leased or limit.own
  return state
end

-- Writes the changed states. A key that owes nothing equals a new one.
local function write()
  for _, name in ipairs(changed) do
    local state = states[name]
    if state and state.is_changed then
      state.is_changed = nil
      local of = state.leased or kind_of(state.kind)
      if not of.is_blank(state) then
        local raw, counts_for = of.write(state, name)
        if raw then call('SET', name, raw, 'PX', life(counts_for)) end
      elseif stored[name] then
        call('DEL', name)
      end
    end
  end
end

-- A state to try a change on. A small one is only changed if something was given back or charged; a large one, which is
-- costly to copy, also sheds what does not count any more.
local function trial(state)
  if state.is_large then return state end
  local twin = {}
  for field, value in pairs(state) do twin[field] = value end
  twin.is_changed = nil
  return twin
end

