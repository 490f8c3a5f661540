#include "worker/runner/adapter_places.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace somnus {

void AdapterPlaces::Clear() {
  std::fill(rooms_.begin(), rooms_.end(), Room());
  std::fill(place_of_.begin(), place_of_.end(), -1);
}

void AdapterPlaces::Drop(int32_t slot) {
  int32_t& place = place_of_[slot - 1];
  if (place >= 0) rooms_[place] = Room();
  place = -1;
}

absl::StatusOr<std::vector<AdapterPlaces::Move>> AdapterPlaces::Place(absl::Span<const int32_t> step,
                                                                      absl::Span<const int32_t> held) {
  // First, so that an error leaves nothing half done.
  if (std::set<int32_t>(step.begin(), step.end()).size() > rooms_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the step has more adapters than max_loras, ", num_places()));
  }
  ++step_;
  for (const int32_t slot : step) {
    if (const int32_t place = place_of_[slot - 1]; place >= 0) rooms_[place].last_step = step_;
  }
  std::vector<Move> moves;
  for (const int32_t slot : step) {
    if (place_of_[slot - 1] >= 0) continue;
    const int32_t place = Choose(held);
    if (rooms_[place].slot > 0) Drop(rooms_[place].slot);
    rooms_[place] = {.slot = slot, .last_step = step_};
    place_of_[slot - 1] = place;
    moves.push_back({slot, place});
  }
  return moves;
}

int32_t AdapterPlaces::Choose(absl::Span<const int32_t> held) const {
  const auto rank_of = [&](const Room& room) {
    const bool is_held = std::find(held.begin(), held.end(), room.slot) != held.end();
    return std::pair<bool, uint64_t>(is_held, room.last_step);
  };
  int32_t best = -1;
  for (int32_t place = 0; place < num_places(); ++place) {
    if (rooms_[place].last_step == step_) continue;
    if (best < 0 || rank_of(rooms_[place]) < rank_of(rooms_[best])) best = place;
  }
  return best;
}

}  // namespace somnus
