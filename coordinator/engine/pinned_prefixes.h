#pragma once
// Pinned prefixes as callers see them: prompts whose beginnings stay in an engine's prefix cache until they
// are unpinned. A pin computes nothing: the engine holds its blocks once a request has computed them, and
// again once one has computed them again after they were lost (block_manager/prefix_pins.h says how). Pins
// end with the engine.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace somnus {

struct PrefixRequest {
  std::string id;               // chosen by the caller
  std::vector<int32_t> prompt;  // its full blocks are pinned
  std::string cache_salt;       // as the requests' that begin with it
  absl::Time created;
};

struct PinnedPrefix {
  std::string id;
  absl::Time created;
  int32_t num_tokens = 0;  // of its blocks
  int32_t num_blocks = 0;
  int32_t num_held = 0;  // of them, that the cache has; of replicas: where it has the fewest
};

// Thread safe; no call waits for a step.
class PinnedPrefixes {
 public:
  virtual ~PinnedPrefixes() = default;

  // Pins the prompt's full blocks. A prompt whose full blocks are pinned under the same salt already is not
  // pinned again: the pin that there is, is returned. InvalidArgument: the prompt has no full block, or more
  // than pins may have, or the engine has no prefix cache. ResourceExhausted: there is no room beside the
  // other pins, or there are too many; the message says how many blocks are pinned, asked for and allowed.
  virtual absl::StatusOr<PinnedPrefix> Pin(const PrefixRequest& request) = 0;
  // Takes one Pin back, as where the request that was to compute the prompt was refused. The pin ends with
  // its last caller. An id that is not pinned is ignored.
  virtual void Withdraw(const std::string& id) = 0;
  // Ends the pin, however many have asked for it. NotFound: there is none with this id.
  virtual absl::Status Unpin(const std::string& id) = 0;
  // In the order in which they were pinned.
  virtual std::vector<PinnedPrefix> List() const = 0;
};

}  // namespace somnus
