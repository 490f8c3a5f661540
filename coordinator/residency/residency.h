#pragma once
// Which tags of a model's memory sleep, on every rank alike, and how deep. Values; not thread safe.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace somnus {

// Bytes by tag, summed over the ranks.
using TagBytes = std::map<std::string, int64_t>;

// From the shallowest to the deepest.
enum class TagState {
  kResident,
  kBackedUp,   // released; a wake-up restores a copy
  kDiscarded,  // released; of the weights, a wake-up reads the checkpoint
};
// "resident", "backed_up", "discarded": the names that the wire, metrics and logs use.
const char* TagStateName(TagState state);

// Which memory a sleep releases. The level matters for the weights alone: 1 backs them up, 2 discards them;
// everything else is discarded.
struct SleepSpec {
  int level = 1;
  std::vector<std::string> tags;  // empty: all
};

class Residency {
 public:
  // Every tag is resident.
  bool awake() const { return asleep_.empty(); }
  // No tag is resident.
  bool fully_asleep() const;
  // 0 when awake; 2 when the weights are discarded; 1 otherwise.
  int level() const;
  TagState state(const std::string& tag) const;
  const std::set<std::string>& asleep() const { return asleep_; }

  // What a sleep or a wake-up has to do: of its tags (empty: all) those that are not as deep, or not
  // resident. Sorted, each once.
  std::vector<std::string> ToSleep(const SleepSpec& spec) const;
  std::vector<std::string> ToWake(const std::vector<std::string>& tags) const;

  // What was discarded before stays so, whatever the level.
  void Slept(const SleepSpec& spec);
  // Exactly these.
  void Woke(const std::vector<std::string>& tags);

  bool operator==(const Residency&) const = default;

 private:
  std::set<std::string> asleep_;
  bool weights_discarded_ = false;
};

}  // namespace somnus
