local names, is_listed, before = {}, {}, 0
for number = 2, #ARGV do
  local _, keys, plain = unpack_from('>BI2I2', ARGV[number])
  for index = before + 1, before + plain do
    local name = KEYS[index]
    if not is_listed[name] then
      is_listed[name] = true
      names[#names + 1] = name
    end
  end
  before = before + keys
end
load_many(names)

local replies = {}
before = 0
for number = 2, #ARGV do
  local body = ARGV[number]
  local operation, keys, _, count = unpack_from('>BI2I2I2', body)
  replies[number - 1] = operations[operation](body, before, count)
  before = before + keys
end
write_changes()
return replies
