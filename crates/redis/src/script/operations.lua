-- The operations by number; most are created on first use.
local operations = { decide, peek, [DECIDE_GROUPS] = decide_groups }

local function operate(plan, before)
  local operation = plan.operation
  if not operations[operation] then
    if operation == 9 then
      operations[9] = leasing()
    else
      operations[3], operations[4] = holding()
      operations[5], operations[6], operations[7] = changing()
    end
  end
  return operations[operation](plan, before)
end

return operate, write
