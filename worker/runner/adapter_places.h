#pragma once
// Which adapters (LoRA) are in the device's memory: every adapter has a slot, and a step needs places for its
// adapters' slots. A slot without a place takes the least recently used place that no sequence needs, or else
// the least recently used place that the step does not need. Plain logic, without the adapters' memory
// (rank_adapters.h). Used by the runner thread alone.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace somnus {

class AdapterPlaces {
 public:
  struct Move {
    int32_t slot = 0;
    int32_t place = 0;
    bool operator==(const Move&) const = default;
  };

  // Slots are counted from 1 on, places from 0.
  AdapterPlaces(int32_t num_slots, int32_t num_places) : rooms_(num_places), place_of_(num_slots, -1) {}

  // No slot has a place.
  void Clear();
  // The slot has no place.
  void Drop(int32_t slot);
  // Gives every slot of `step` a place, and returns the slots that had none. `held` are the slots of all
  // sequences, of which later steps may need any: their places are the last to be taken. InvalidArgument: the
  // step has more slots than there are places.
  absl::StatusOr<std::vector<Move>> Place(absl::Span<const int32_t> step, absl::Span<const int32_t> held);

  int32_t num_places() const { return static_cast<int32_t>(rooms_.size()); }
  // [num_slots]: the place of each slot, at the slot's number less 1; -1: none.
  const std::vector<int32_t>& places() const { return place_of_; }

 private:
  struct Room {
    int32_t slot = 0;        // 0: none
    uint64_t last_step = 0;  // that needed the slot
  };

  // The place that gives way; -1: the current step needs all places.
  int32_t Choose(absl::Span<const int32_t> held) const;

  std::vector<Room> rooms_;
  std::vector<int32_t> place_of_;
  uint64_t step_ = 0;  // counts calls of Place
};

}  // namespace somnus
