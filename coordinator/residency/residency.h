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
  // At level 1, after a sleep at level 2 that failed: some ranks may have discarded their weights all the
  // same. They must all do so before a wake-up, since what is read again may not be what others kept.
  bool levels_differ() const { return levels_differ_; }
  const std::set<std::string>& asleep() const { return asleep_; }
  // Whether waking `tags` reads the checkpoint, which takes as long as a load.
  bool WakeReadsWeights(const std::vector<std::string>& tags) const;

  // What a sleep or a wake-up has to do: of its tags (empty: all) those that are not as deep, or not
  // resident. Sorted, each once.
  std::vector<std::string> ToSleep(const SleepSpec& spec) const;
  std::vector<std::string> ToWake(const std::vector<std::string>& tags) const;

  // What was discarded before stays so, whatever the level.
  void Slept(const SleepSpec& spec);
  // All tags sleep after a sleep at `level` that failed: each rank may have reached that level or not.
  void SleptInPart(int level);
  // Exactly these.
  void Woke(const std::vector<std::string>& tags);

  bool operator==(const Residency&) const = default;

 private:
  std::set<std::string> asleep_;
  bool weights_discarded_ = false;
  bool levels_differ_ = false;
};

}  // namespace somnus
