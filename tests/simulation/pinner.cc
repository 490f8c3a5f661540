#include "tests/simulation/pinner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/simulation/clients.h"

namespace somnus::simulation {
namespace {

constexpr int kMaxRounds = 5;

}  // namespace

void Pinner::Work(absl::Duration span) {
  for (int64_t i = random_.Between(0, kMaxRounds); i > 0; --i) {
    world_.Sleep(random_.Between(absl::ZeroDuration(), span));
    if (pinned_.empty() || random_.Chance(0.6)) {
      Pin();
    } else {
      Unpin(pinned_[random_.Between(0, static_cast<int64_t>(pinned_.size()) - 1)]);
    }
  }
}

void Pinner::End() {
  while (!pinned_.empty()) Unpin(pinned_.back());
  if (!engine_.pinned_prefixes().List().empty()) world_.Violate("a prefix is pinned that nobody wants");
}

void Pinner::Pin() {
  PrefixRequest request;
  request.id = absl::StrCat("prefix-", num_pins_);
  request.prompt = SharedPrefix(random_.Between(1, kNumSharedPrefixes));
  const absl::StatusOr<PinnedPrefix> pin = engine_.pinned_prefixes().Pin(request);
  // A small cache has room for few.
  if (absl::IsResourceExhausted(pin.status()) || absl::IsInvalidArgument(pin.status())) return;
  if (!pin.ok()) return world_.Violate(absl::StrCat("Pin: ", pin.status().message()));
  if (pin->num_held > pin->num_blocks)
    world_.Violate(absl::StrCat(pin->num_held, " blocks are held of ", pin->num_blocks));
  ++num_pins_;
  // A prefix that is pinned already keeps the first id.
  if (std::find(pinned_.begin(), pinned_.end(), pin->id) == pinned_.end()) pinned_.push_back(pin->id);
}

void Pinner::Unpin(std::string id) {
  const absl::Status status = engine_.pinned_prefixes().Unpin(id);
  if (!status.ok()) world_.Violate(absl::StrCat("Unpin: ", status.message()));
  pinned_.erase(std::find(pinned_.begin(), pinned_.end(), id));
}

}  // namespace somnus::simulation
