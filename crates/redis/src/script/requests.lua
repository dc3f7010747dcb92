-- One function for each operation. Each takes the body of a request, how many of KEYS come before its own, and how many
-- charges it has, and returns the reply.
local CHARGE = '>BI2I7I2I7I6I4I7'

-- The charge at `at`, and where the next one begins.
local function read_charge(body, at, before)
  local kind, key, cost, hold, ttl, a, b, capacity, next_at = unpack_from(CHARGE, body, at)
  return {
    kind = kind, shape = kind == SHAPER and TAT or kind, name = KEYS[before + key], cost = cost,
    hold = hold > 0 and KEYS[before + hold], ttl = ttl, a = a, b = b, capacity = capacity, of = kind_of(kind),
  }, next_at
end

-- The charges of a request; nil and a reply if somebody else uses the keys of any. Something held, as receipts tell of
-- it, is a charge, its mark, and what it really cost, if that is known.
local function read_charges(body, before, count, are_held)
  local charges, foreign, at = {}, {}, 8
  for number = 1, count do
    local charge
    charge, at = read_charge(body, at, before)
    if are_held then
      local is_known, actual
      charge.mark, is_known, actual, at = unpack_from('>I7BI7', body, at)
      if is_known == 1 then charge.actual = actual end
    end
    charges[number] = charge
    if known(charge.name, charge.kind) == FOREIGN then foreign[#foreign + 1] = pack('>I2', number - 1) end
  end
  if #foreign > 0 then return nil, '\1' .. table.concat(foreign) end
  return charges
end

-- The limit's answer, whatever the clock did.
local function evaluate(charge, state, cost)
  return charge.of.look(charge, charge.of.moved(charge, state) or state, cost)
end

-- Moves a state that is ahead to the present, and keeps it there.
local function resync(charge, state)
  local moved = charge.of.moved(charge, state)
  if not moved then return state, false end
  if charge.of.is_direct then return charge.of.move(moved), true end
  keep(charge.name, moved)
  return moved, true
end

local function is_held(charge)
  return charge.cost > 0 and (charge.hold or charge.kind == SLOTS)
end

-- Makes a charge that was found to be allowed. Returns its mark if it is held.
local function make(charge, id, is_repeated)
  local held, state = is_held(charge), view(charge)
  state = resync(charge, state)
  -- An earlier charge to the same key may have been made under another limit.
  if is_repeated and not held and charge.of.look(charge, state, charge.cost) ~= ALLOW then return '' end
  charge.of.charge(charge, state, charge.cost, id)
  if not charge.of.is_direct then keep(charge.name, state) end
  if not held then return '' end
  local mark = charge.of.mark(charge, state)
  if charge.hold then
    local expires = min(now + charge.ttl, LAST)
    call('SET', charge.hold, pack('>I7I7I7', expires, charge.ttl, charge.cost) .. mark, 'PX', life(charge.ttl))
  end
  return mark
end

-- Decides the only charge of a request, which is final if it is made.
local function decide_alone(charge)
  local state = resync(charge, view(charge))
  local outcome, remaining, reset, wait = charge.of.look(charge, state, charge.cost)
  if outcome == ALLOW and charge.cost > 0 then
    charge.of.charge(charge, state, charge.cost, ANONYMOUS)
    keep(charge.name, state)
  end
  return pack('>BBI7I7I7', 0, outcome, remaining, reset, wait)
end

local operations = {}

operations[1] = function(body, before, count)
  local charges, foreign = read_charges(body, before, count)
  if not charges then return foreign end
  if count == 1 and not is_held(charges[1]) then return decide_alone(charges[1]) end
  local answers, is_allowed = {}, true
  for number, charge in ipairs(charges) do
    local cost = charge.cost
    for earlier = 1, number - 1 do
      if charges[earlier].name == charge.name then
        cost, charge.is_repeated = cost + charges[earlier].cost, true
      end
    end
    local outcome, remaining, reset, wait = evaluate(charge, view(charge), cost)
    is_allowed = is_allowed and outcome == ALLOW
    answers[number] = pack('>BI7I7I7', outcome, remaining, reset, wait)
  end
  if is_allowed then
    local id, marks = sub(body, -16), {}
    for number, charge in ipairs(charges) do
      marks[number] = charge.cost > 0 and make(charge, id, charge.is_repeated) or ''
    end
    return '\0' .. table.concat(answers) .. table.concat(marks)
  end
  for number, charge in ipairs(charges) do
    local state = resync(charge, view(charge))
    if byte(answers[number]) == ALLOW then
      answers[number] = pack('>BI7I7I7', charge.of.look(charge, state, 0))
    end
  end
  return '\0' .. table.concat(answers)
end

-- Peeks: what each charge by itself would be answered.
operations[2] = function(body, before, count)
  local charges, foreign = read_charges(body, before, count)
  if not charges then return foreign end
  local answers = {}
  for number, charge in ipairs(charges) do
    answers[number] = pack('>BI7I7I7', evaluate(charge, view(charge), charge.cost))
  end
  return '\0' .. table.concat(answers)
end

-- A reservation that is still open: when it expires, for how long it was made, what was taken, and where.
local function open_hold(name)
  local raw = call('GET', name)
  if not raw or #raw ~= 32 then return nil end
  local expires, ttl, taken = unpack_from('>I7I7I7', raw)
  if expires <= now then
    call('DEL', name)
    return nil
  end
  return ttl, taken, sub(raw, 22)
end

-- A state to try a change on. A small one is only changed if something was given back or charged; a large one, which is
-- costly to copy, also sheds what does not count any more.
local function trial(state)
  if state.is_large then return state end
  local twin = {}
  for field, value in pairs(state) do twin[field] = value end
  twin.kept_as = nil
  return twin
end

-- Gives back `back` of what was taken at `mark`, or charges `more` on top.
local function settle_cost(charge, back, more, mark)
  local state, same = known(charge.name, charge.kind), true
  if state and not has_shape(state, charge) then
    -- The key is under another limit by now, to which all was carried over as spent just then.
    same = false
    charge.kind, charge.shape, charge.a, charge.b, charge.of = state.kind, state.shape, state.a, state.b,
      kind_of(state.kind)
  end
  state = state and trial(state) or charge.of.fresh(charge)
  local of, given = charge.of, 0
  if back > 0 then
    given = same and of.refund(charge, state, back, mark) or not same and of.credit(charge, state, back) or 0
  end
  if more > 0 and not of.is_direct then of.charge(charge, state, more) end
  if not of.is_direct and (given > 0 or more > 0 or (back > 0 and state.is_large and states[charge.name])) then
    keep(charge.name, state)
  end
  return given
end

-- Settles one thing held. Returns what was given back and what had been taken; nil if it is gone.
local function settle_one(charge, id)
  if charge.kind == SLOTS then
    local state = view(charge)
    if states[charge.name] ~= state then return nil end
    local freed = charge.of.release(charge, state, id)
    if freed == 0 then return nil end
    return freed, freed
  end
  local _, taken, mark = open_hold(charge.hold)
  if not taken then return nil end
  call('DEL', charge.hold)
  local actual = charge.actual or taken
  return settle_cost(charge, max(taken - actual, 0), max(actual - taken, 0), mark), taken
end

operations[3] = function(body, before, count)
  local charges, foreign = read_charges(body, before, count, true)
  if not charges then return foreign end
  local id, answers = sub(body, -16), {}
  for number, charge in ipairs(charges) do
    local given, taken = settle_one(charge, id)
    answers[number] = pack('>BI7I7', given and 1 or 0, given or 0, taken or 0)
  end
  return '\0' .. table.concat(answers)
end

local function renew_one(charge, id)
  if charge.kind == SLOTS then
    local state = view(charge)
    return states[charge.name] == state and charge.of.renew(charge, state, id)
  end
  local ttl, taken, mark = open_hold(charge.hold)
  if not ttl then return false end
  call('SET', charge.hold, pack('>I7I7I7', min(now + ttl, LAST), ttl, taken) .. mark, 'PX', life(ttl))
  return true
end

operations[4] = function(body, before, count)
  local charges, foreign = read_charges(body, before, count, true)
  if not charges then return foreign end
  local id, answers = sub(body, -16), {}
  for number, charge in ipairs(charges) do answers[number] = renew_one(charge, id) and '\1' or '\0' end
  return '\0' .. table.concat(answers)
end

-- Penalties and credits.
local function adjust(body, before, change)
  local charges, foreign = read_charges(body, before, 1)
  if not charges then return foreign end
  local charge = charges[1]
  local before_it, state = known(charge.name), view(charge)
  local moved = charge.of.moved(charge, state)
  -- Leases that are ahead are moved whatever else happens; other states only if they change, or if they are large.
  if moved and charge.of.is_direct then
    state = charge.of.move(moved)
  else
    state = moved or trial(state)
  end
  local is_kept = change(charge, state) or (before_it and state.is_large and has_shape(before_it, charge))
  if is_kept and not charge.of.is_direct then keep(charge.name, state) end
  if charge.of.is_direct then state = view(charge) end
  return '\0' .. pack('>BI7I7I7', charge.of.look(charge, state, 0))
end

operations[5] = function(body, before)
  return adjust(body, before, function(charge, state)
    charge.of.charge(charge, state, charge.cost, ANONYMOUS)
    return true
  end)
end

operations[6] = function(body, before)
  return adjust(body, before, function(charge, state)
    return charge.of.credit(charge, state, charge.cost) > 0
  end)
end

-- Forgets a key.
operations[7] = function(_, before)
  local name = KEYS[before + 1]
  local state = known(name)
  if state == FOREIGN then return '\1\0\0' end
  if not state then return '\0\0' end
  call('DEL', name)
  states[name], stored[name] = false, nil
  return '\0\1'
end
