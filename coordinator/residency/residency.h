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

// The memory that the ranks of a group hold.
struct GroupBytes {
  TagBytes resident;  // of device memory
  TagBytes host;      // of host memory, for backups, kept blocks and adapters, retained memory included
  TagBytes sleeping;  // of device memory that a wake-up would map

  bool operator==(const GroupBytes&) const = default;
};

// From the shallowest to the deepest.
enum class TagState {
  kResident,
  kStale,      // of the weights alone: mapped, but with contents of no version, so nothing is computed
  kBackedUp,   // released; a wake-up restores a copy
  kDiscarded,  // released; of the weights, a wake-up reads the checkpoint
};
// "resident", "stale", "backed_up", "discarded": the names that the wire, metrics and logs use.
const char* TagStateName(TagState state);

// Which memory a sleep releases. The level matters for the weights alone: 1 backs the weights up, 2 discards
// the weights; everything else is discarded, and so are stale weights.
struct SleepSpec {
  int level = 1;
  std::vector<std::string> tags;  // empty: all
};

class Residency {
 public:
  // Every tag is resident, and the weights are not stale.
  bool awake() const { return asleep_.empty() && !weights_stale_; }
  // No tag is resident.
  bool fully_asleep() const;
  // 0 when all is mapped; 2 when the weights are discarded; 1 otherwise.
  int level() const;
  TagState state(const std::string& tag) const;
  const std::set<std::string>& asleep() const { return asleep_; }
  bool weights_stale() const { return weights_stale_; }

  // The work of a sleep or a wake-up: the tags named (empty: all) that do not sleep as deep yet, or are not
  // resident. Sorted, each once. A wake-up has to bring stale weights, too. The workspace is of no use alone:
  // a sleep after which neither weights nor KV cache are mapped takes the workspace along, and so does a
  // wake-up after which both are mapped. Controllers of vLLM know weights and KV cache alone.
  std::vector<std::string> ToSleep(const SleepSpec& spec) const;
  std::vector<std::string> ToWake(const std::vector<std::string>& tags) const;

  // Exactly the tags of `spec` have fallen asleep. Weights that were discarded before stay discarded at any
  // level.
  void Slept(const SleepSpec& spec);
  // Exactly `tags` have woken. `weights_stale`: weights that are among the tags, and were discarded or stale,
  // were not read.
  void Woke(const std::vector<std::string>& tags, bool weights_stale = false);
  // Changes nothing while the weights sleep.
  void SetWeightsStale(bool stale);

  bool operator==(const Residency&) const = default;

 private:
  std::set<std::string> asleep_;
  bool weights_discarded_ = false;
  bool weights_stale_ = false;  // never while the weights sleep
};

}  // namespace somnus
