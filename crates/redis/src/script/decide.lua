-- Deciding and peeking. An operation takes the plan of a request and how many of KEYS come before its own, and returns
-- the reply.
local CHARGE, FIRST_CHARGE = '>BI2I7I2I7I6I4I7', 8
local DECIDE_GROUPS = 8

-- Reads a charge. Returns it and the position of the next one.
local function read_charge(body, at)
  local kind, key, cost, hold, ttl, a, b, capacity
  kind, key, cost, hold, ttl, a, b, capacity, at = unpack_from(CHARGE, body, at)
  local is_part = kind > 15
  if is_part then kind = kind - 16 end
  local of = kind_of(kind)
  local charge = {
    kind = kind, own = of, of = of, a = a, b = b, capacity = capacity, is_part = is_part,
    key = key, cost = cost, hold_key = hold, ttl = ttl, is_held = cost > 0 and (hold > 0 or kind == SLOTS),
  }
  return charge, at
end

-- Sets the cost of each charge that is decided together with others: its own and those to the same key before it.
local function sum_up(charges, first, last)
  local sums = {}
  for number = first, last do
    local charge = charges[number]
    local sum = sums[charge.key]
    charge.is_repeated, charge.up_to = sum ~= nil, charge.cost + (sum or 0)
    sums[charge.key] = charge.up_to
  end
end

-- The charges of a plan, and the first charge of each group that is decided together.
local function read_charges(plan)
  local charges, at = {}, FIRST_CHARGE
  for number = 1, plan.count do charges[number], at = read_charge(plan.body, at) end
  plan.charges = charges
  if plan.operation ~= DECIDE_GROUPS then
    sum_up(charges, 1, plan.count)
    return charges
  end
  local groups, first = {}, 1
  while at <= #plan.body do
    local last = first + unpack_from('>I2', plan.body, at) - 1
    groups[#groups + 1] = { first = first, last = last, id = sub(plan.body, at + 2, at + 17) }
    sum_up(charges, first, last)
    first, at = last + 1, at + 18
  end
  plan.groups = groups
  return charges
end

-- Finds the keys of charges. Returns an error reply if another program uses any of them.
local function locate(charges, before)
  local foreign
  for number, charge in ipairs(charges) do
    local place = before + charge.key
    local name = KEYS[place]
    charge.name, charge.hold = name, charge.hold_key > 0 and KEYS[before + charge.hold_key]
    if not places[name] then places[name] = place end
    if known(name, charge.kind) == FOREIGN then foreign = (foreign or '\1') .. pack('>I2', number - 1) end
  end
  return foreign
end

-- Stores a state that was moved from the future to the present.
local function resync(charge, state, moved)
  if not moved then return state end
  if charge.of.is_direct then return charge.of.move(moved) end
  keep(charge.name, moved)
  return moved
end

-- The state of a charge's key, and the moved state if it lies in the future.
local function look_up(charge)
  local state = view(charge)
  return state, charge.of.moved(charge, state)
end

-- The same state, brought to the present.
local function present(charge)
  if charge.is_repeated then return resync(charge, look_up(charge)) end
  return resync(charge, charge.state, charge.moved)
end

-- Makes an allowed charge. Returns its mark if it is held.
local function make(charge, id)
  local state = present(charge)
  local of = charge.of
  -- A charge of cost 0 still moves a state from the future to the present.
  if charge.cost == 0 then return '' end
  -- An earlier charge to the same key may have been made under another limit.
  if charge.is_repeated and not charge.is_held and of.look(charge, state, charge.cost) ~= ALLOW then
    if state.leased then of.settle(charge, state) end
    return ''
  end
  of.charge(charge, state, charge.cost, id)
  if not of.is_direct then keep(charge.name, state) end
  if not charge.is_held then return '' end
  local mark = of.mark(charge, state)
  if charge.hold then
    local expires = min(now + charge.ttl, LAST)
    call('SET', charge.hold, pack('>I7I7I7', expires, charge.ttl, charge.cost) .. mark, 'PX', life(charge.ttl))
  end
  return mark
end

-- Decides the only charge of a request, which is final if it is made.
local function decide_alone(charge)
  local state = resync(charge, look_up(charge))
  local outcome, remaining, reset, wait = charge.of.look(charge, state, charge.cost)
  if outcome == ALLOW and charge.cost > 0 then
    charge.of.charge(charge, state, charge.cost, ANONYMOUS)
    if not charge.of.is_direct then keep(charge.name, state) end
  elseif state.leased then
    state.leased.settle(charge, state)
  end
  return pack('>BBI7I7I7', 0, outcome, remaining, reset, wait)
end

local answers = {}

-- Decides the charges from one number to another together. Returns the answers, and the marks of those that are held if
-- all are made.
local function decide_together(charges, first, last, id)
  local all_allowed = true
  for number = first, last do
    local charge = charges[number]
    local state, moved = look_up(charge)
    local outcome, remaining, reset, wait = charge.of.look(charge, moved or state, charge.up_to)
    answers[number] = pack('>BI7I7I7', outcome, remaining, reset, wait)
    charge.state, charge.moved, charge.is_allowed = state, moved, outcome == ALLOW
    all_allowed = all_allowed and outcome == ALLOW
  end
  if all_allowed then
    local reply = table.concat(answers, '', first, last)
    for number = first, last do reply = reply .. make(charges[number], id) end
    return reply, true
  end
  -- Nothing is charged: limits that would have allowed the request return what they have left.
  for number = first, last do
    local charge = charges[number]
    local state = present(charge)
    if charge.is_allowed then answers[number] = pack('>BI7I7I7', charge.of.look(charge, state, 0)) end
  end
  return table.concat(answers, '', first, last), false
end

-- Peeks at the decision on each charge by itself.
local function look_at(charges, first, last)
  for number = first, last do
    local charge = charges[number]
    local state, moved = look_up(charge)
    answers[number] = pack('>BI7I7I7', charge.of.look(charge, moved or state, charge.cost))
  end
  return table.concat(answers, '', first, last)
end

local function decide(plan, before)
  local charges = plan.charges or read_charges(plan)
  local foreign = locate(charges, before)
  if foreign then return foreign end
  if plan.count == 1 and not charges[1].is_held then return decide_alone(charges[1]) end
  return '\0' .. decide_together(charges, 1, plan.count, sub(plan.body, -16))
end

-- Decides the enforced charges, and then each group in shadow mode by itself.
local function decide_groups(plan, before)
  local charges = plan.charges or read_charges(plan)
  local foreign = locate(charges, before)
  if foreign then return foreign end
  local counting = plan.groups[1]
  local reply, goes_ahead = decide_together(charges, counting.first, counting.last, counting.id)
  reply = '\0' .. reply
  for number = 2, #plan.groups do
    local group = plan.groups[number]
    if goes_ahead then
      reply = reply .. decide_together(charges, group.first, group.last, group.id)
    else
      reply = reply .. look_at(charges, group.first, group.last)
    end
  end
  return reply
end

local function peek(plan, before)
  local charges = plan.charges or read_charges(plan)
  return locate(charges, before) or '\0' .. look_at(charges, 1, plan.count)
end

