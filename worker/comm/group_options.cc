#include "worker/comm/group_options.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace somnus {

GroupOptions WithDefaults(GroupOptions options, absl::Duration connect_timeout, int64_t buffer_bytes) {
  if (!options.connect_timeout.has_value()) options.connect_timeout = connect_timeout;
  if (!options.buffer_bytes.has_value()) options.buffer_bytes = buffer_bytes;
  return options;
}

absl::Status CheckGroupOptions(const GroupOptions& options, int max_ranks) {
  const auto bad = [](const auto&... text) { return absl::InvalidArgumentError(absl::StrCat(text...)); };
  const std::string& name = options.group_name;
  const auto legal = [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; };
  if (name.empty() || name.size() > 64 || !std::all_of(name.begin(), name.end(), legal))
    return bad("group_name: 1 to 64 letters, digits, '_' and '-' are wanted");
  if (options.world_size < 1 || options.world_size > max_ranks)
    return bad("world_size: ", options.world_size, " is not 1 to ", max_ranks);
  if (options.rank < 0 || options.rank >= options.world_size)
    return bad("rank: ", options.rank, " is not in a group of ", options.world_size);
  if (!options.numbers.empty() && options.numbers.size() != static_cast<size_t>(options.world_size))
    return bad("numbers: ", options.numbers.size(), " for ", options.world_size, " ranks");
  const int64_t bytes = options.buffer_bytes.value_or(4096);
  if (bytes < 4096 || bytes > (int64_t{1} << 30) || bytes % 64 != 0)
    return bad("buffer_bytes: a multiple of 64 from 4 KiB to 1 GiB is wanted");
  return absl::OkStatus();
}

}  // namespace somnus
