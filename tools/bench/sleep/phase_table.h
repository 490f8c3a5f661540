#pragma once
// The measurements of sleep_bench: phases, each with the times over all rounds, and the least possible time.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"

namespace somnus {

// The speeds of this machine, measured in the same run; bytes a second, 0 where not measured.
struct SleepFloors {
  double fault = 0;       // new memory becomes resident, all threads
  double copy = 0;        // from resident memory to resident memory, all threads
  double release = 0;     // memory is given back
  double disk_write = 0;  // past the page cache
  double disk_read = 0;
};

struct Phase {
  std::string section;  // "allocator, backup release"
  std::string name;     // "wake-up"
  int64_t bytes = 0;
  std::vector<double> seconds;        // by round
  std::vector<double> floor_seconds;  // by round, from the floors of that round; empty: the phase has no
                                      // floor
};

// A quantity that is measured once a round and is no time.
struct Quantity {
  std::string section;
  std::string name;            // "of the workers' memory released"
  std::string unit;            // "%"
  std::vector<double> values;  // by round
};

class PhaseTable {
 public:
  // Adds one round's times to a phase, which the first call makes. floor_seconds 0: no floor.
  void Add(const std::string& section, const std::string& name, int64_t bytes, double seconds,
           double floor_seconds = 0);
  void AddQuantity(const std::string& section, const std::string& name, const std::string& unit,
                   double value);
  void AddFloors(const SleepFloors& floors) { floors_.push_back(floors); }

  // Medians of the rounds, for people.
  std::string ToText() const;
  // The same with every round's number.
  nlohmann::json ToJson() const;
  // A bar for each phase, as long as the median, with a mark at the floor; sections have scales of their own.
  std::string ToSvg() const;

 private:
  std::vector<SleepFloors> floors_;  // by round
  std::vector<Phase> phases_;        // in the order of their first round
  std::vector<Quantity> quantities_;
};

}  // namespace somnus
