#include "coordinator/adapters/adapter_registry.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/random_hex.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "coordinator/residency/declined.h"

namespace somnus {
namespace {

// A call that waits for the place of one adapter looks this often for another place.
constexpr absl::Duration kLook = absl::Milliseconds(20);
constexpr absl::Duration kRetryPause = absl::Milliseconds(200);

absl::Status CheckText(const char* field, const std::string& text, size_t most) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(field, ": must not be empty"));
  if (text.size() > most)
    return absl::InvalidArgumentError(absl::StrCat(field, ": is longer than ", most, " bytes"));
  if (!IsUtf8(text) || text.find('\0') != std::string::npos)
    return absl::InvalidArgumentError(absl::StrCat(field, ": is not text"));
  return absl::OkStatus();
}

// For a client who found the name a moment ago.
absl::Status NoLongerServed(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("The adapter '", name, "' is no longer served."));
}

uint64_t NewId() {
  uint64_t id = 0;
  while (id == 0) {
    if (!absl::SimpleHexAtoi(RandomHex(8), &id)) id = 0;
  }
  return id;
}

// Whether the workers are at fault, and not the files: every other error is of files that cannot be read.
bool IsOfWorkers(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsCancelled(status) ||
         absl::IsDeadlineExceeded(status) || IsDeclined(status);
}

}  // namespace

AdapterRegistry::AdapterRegistry(std::shared_ptr<Engine> engine, const AdapterRegistryOptions& options)
    : engine_(std::move(engine)), options_(options) {}

AdapterRegistry::~AdapterRegistry() = default;

// ---- Operators' calls

absl::Status AdapterRegistry::Load(const std::string& name, const std::string& path, bool in_place) {
  RETURN_IF_ERROR(CheckText("lora_name", name, kMaxNameBytes));
  RETURN_IF_ERROR(CheckText("lora_path", path, kMaxPathBytes));
  const MonotonicTime deadline = MonotonicNow() + options_.unload_timeout;
  ++num_loads_;
  const absl::Cleanup ended = [this] { --num_loads_; };
  while (true) {
    auto leaving = std::make_shared<StopSignal>();
    {
      absl::MutexLock lock(&call_mu_);
      RETURN_IF_ERROR(CheckLoad(name, path, in_place));
      if (const int32_t slot = MakeRoom(&leaving); slot > 0) {
        Known known{.path = path, .salt = absl::StrCat("lora:", RandomHex(16), ":")};
        RETURN_IF_ERROR(Read(name, slot, &known));
        absl::MutexLock names(&mu_);
        known.last_use = ++num_uses_;
        std::swap(known_[name], known);
        // `known`, the adapter of before, ends behind the lock.
        return absl::OkStatus();
      }
    }
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("lora_name: all places of --max-cpu-loras, ", options_.max_adapters,
                       ", have adapters with open requests, and none of these has ended its requests within ",
                       absl::FormatDuration(options_.unload_timeout)));
    }
    leaving->WaitFor(std::min(kLook, deadline - MonotonicNow()));
  }
}

absl::Status AdapterRegistry::CheckLoad(const std::string& name, const std::string& path,
                                        bool in_place) const {
  absl::MutexLock lock(&mu_);
  if (known_.count(name) > 0) {
    if (in_place) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("lora_name: '", name, "' is loaded; load_inplace replaces it"));
  }
  if (known_.size() < static_cast<size_t>(options_.max_names)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("lora_name: there are ", options_.max_names, " adapters (--max-lora-names); unload one"));
}

absl::Status AdapterRegistry::Unload(const std::string& name) {
  Known known;
  std::shared_ptr<StopSignal> unused;
  {
    absl::MutexLock lock(&call_mu_);
    ASSIGN_OR_RETURN(known, Hide(name));
    // At the next change of adapters the workers drop the forgotten adapter.
    if (known.adapter == nullptr) return absl::OkStatus();
    for (const Held& held : held_) {
      if (held.adapter.id == known.adapter->id) unused = held.unused;
    }
  }
  const std::weak_ptr<const RequestAdapter> shared = known.adapter;
  known.adapter.reset();
  const bool ended = unused->WaitFor(options_.unload_timeout);
  absl::MutexLock lock(&call_mu_);
  if (known.adapter = shared.lock(); !ended && known.adapter != nullptr) {
    absl::MutexLock names(&mu_);
    const bool stays = known_.try_emplace(name, std::move(known)).second;
    return absl::DeadlineExceededError(
        absl::StrCat("lora_name: requests with '", name, "' have not ended within ",
                     absl::FormatDuration(options_.unload_timeout), "; the adapter ",
                     stays ? "stays" : "goes with its last request, and another one has its name now"));
  }
  const absl::Status told = Tell(nullptr).status();
  if (told.ok()) return told;
  return absl::Status(told.code(), absl::StrCat("'", name, "' is no longer served, but the workers keep the ",
                                                "adapter until the next load or unload: ", told.message()));
}

absl::StatusOr<AdapterRegistry::Known> AdapterRegistry::Hide(const std::string& name) {
  absl::MutexLock lock(&mu_);
  const auto found = known_.find(name);
  if (found == known_.end())
    return absl::NotFoundError(absl::StrCat("lora_name: no adapter is named '", name, "'"));
  Known known = std::move(found->second);
  known_.erase(found);
  return known;
}

// ---- Requests

absl::StatusOr<AdapterRegistry::Adapter> AdapterRegistry::Acquire(const std::string& name) {
  Adapter dropped;  // ends behind the lock
  absl::MutexLock lock(&mu_);
  const auto found = known_.find(name);
  if (found == known_.end()) return NoLongerServed(name);
  Known& known = found->second;
  if (known.is_dropped()) dropped = std::move(known.adapter);
  known.last_use = ++num_uses_;
  if (known.adapter == nullptr && !known.error.ok() && MonotonicNow() < known.retry_at) return known.error;
  return known.adapter;
}

AdapterRegistry::Brought AdapterRegistry::Bring(const std::string& name,
                                                const std::function<bool()>& wanted) {
  while (wanted()) {
    auto leaving = std::make_shared<StopSignal>();
    Brought brought = TryToBring(name, &leaving);
    const absl::Status& failed = brought.adapter.status();
    if (failed.ok() && *brought.adapter != nullptr) return brought;
    if (failed.ok()) {
      leaving->WaitFor(kLook);
      continue;
    }
    const EngineState state = engine_->state();
    const bool ends = state == EngineState::kFailed || state == EngineState::kDraining;
    const bool of_workers = ends || state == EngineState::kRecovering || IsOfWorkers(failed);
    if (ends || !of_workers || IsDeclined(failed) || !MayRetry(name, brought.load)) {
      brought.adapter = NoteFailure(name, brought, of_workers);
      return brought;
    }
    leaving->WaitFor(kRetryPause);
    return {.adapter = nullptr, .load = brought.load};
  }
  return {.adapter = absl::CancelledError("nobody waits for the adapter any more")};
}

AdapterRegistry::Brought AdapterRegistry::TryToBring(const std::string& name,
                                                     std::shared_ptr<StopSignal>* leaving) {
  absl::MutexLock lock(&call_mu_);
  ForgetDropped();
  Known known;
  {
    absl::MutexLock names(&mu_);
    const auto found = known_.find(name);
    if (found == known_.end()) return {.adapter = NoLongerServed(name)};
    known = found->second;
  }
  absl::StatusOr<Adapter> adapter = BringKnown(name, &known, leaving);
  return {.adapter = std::move(adapter), .load = known.salt};
}

absl::StatusOr<AdapterRegistry::Adapter> AdapterRegistry::BringKnown(const std::string& name, Known* known,
                                                                     std::shared_ptr<StopSignal>* leaving) {
  if (known->adapter != nullptr) return known->adapter;
  const bool restored = Restore(name, known);
  if (!restored) {
    const int32_t slot = MakeRoom(leaving);
    if (slot == 0) return nullptr;
    RETURN_IF_ERROR(Read(name, slot, known));
  }
  absl::MutexLock names(&mu_);
  Known& shown = known_[name];  // names change under call_mu_ alone
  shown.adapter = known->adapter;
  shown.dropped = known->dropped;
  shown.error = absl::OkStatus();
  shown.give_up = absl::InfiniteDuration();
  num_reads_again_ += restored ? 0 : 1;
  return known->adapter;
}

AdapterRegistry::Known* AdapterRegistry::Find(const std::string& name, const std::string& load) {
  const auto found = known_.find(name);
  return found != known_.end() && found->second.salt == load ? &found->second : nullptr;
}

std::string AdapterRegistry::LoadOf(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  const auto found = known_.find(name);
  return found == known_.end() ? "" : found->second.salt;
}

bool AdapterRegistry::MayRetry(const std::string& name, const std::string& load) {
  absl::MutexLock lock(&mu_);
  Known* const known = Find(name, load);
  if (known == nullptr) return false;
  const MonotonicTime now = MonotonicNow();
  known->give_up = std::min(known->give_up, now + options_.ready_timeout);
  return now < known->give_up;
}

absl::Status AdapterRegistry::NoteFailure(const std::string& name, const Brought& failed, bool of_workers) {
  absl::MutexLock lock(&mu_);
  Known* const known = Find(name, failed.load);
  if (known == nullptr) return NoLongerServed(name);
  LogError("adapter {} cannot be read again: {}", name, std::string(failed.adapter.status().message()));
  known->give_up = absl::InfiniteDuration();
  known->error = of_workers ? absl::UnavailableError(absl::StrCat(
                                  "the adapter '", name, "' cannot be read now: the workers are not ready"))
                            : AdapterUnreadable(name, failed.adapter.status());
  known->retry_at = MonotonicNow() + options_.retry_pause;
  return known->error;
}

void AdapterRegistry::NoteWaiting(const std::string& name, int32_t count) {
  absl::MutexLock lock(&mu_);
  int32_t& waiting = waiting_[name];
  waiting += count;
  if (waiting > 0) return;
  waiting_.erase(name);
  // A later request has the whole ready_timeout.
  if (const auto found = known_.find(name); found != known_.end())
    found->second.give_up = absl::InfiniteDuration();
}

bool AdapterRegistry::Knows(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  return known_.count(name) > 0;
}

int64_t AdapterRegistry::num_reads_again() const {
  absl::MutexLock lock(&mu_);
  return num_reads_again_;
}

std::vector<AdapterCard> AdapterRegistry::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<AdapterCard> cards;
  for (const auto& [name, known] : known_) {
    AdapterCard card{
        .name = name, .path = known.path, .held = known.adapter != nullptr && !known.is_dropped()};
    if (const auto waiting = waiting_.find(name); waiting != waiting_.end())
      card.num_waiting = waiting->second;
    if (known.adapter != nullptr) {
      card.num_running = known.adapter->num_running;
      card.num_waiting += known.adapter->num_waiting;
    }
    cards.push_back(std::move(card));
  }
  return cards;
}

// ---- Places

int32_t AdapterRegistry::MakeRoom(std::shared_ptr<StopSignal>* leaving) {
  ForgetDropped();
  if (const int32_t slot = FreeSlot(); slot > 0) return slot;
  ForgetOne();
  if (const int32_t slot = FreeSlot(); slot > 0) return slot;
  absl::MutexLock lock(&mu_);
  const auto leaves = std::find_if(held_.begin(), held_.end(), [this](const Held& held) {
    const auto found = known_.find(held.adapter.name);
    return found == known_.end() || found->second.adapter == nullptr ||
           found->second.adapter->id != held.adapter.id;
  });
  if (leaves != held_.end()) *leaving = leaves->unused;
  return 0;
}

// Forgets the least recently used adapter without requests. Without such an adapter, one with requests is
// forgotten, unless a forgotten adapter still waits for the end of its requests.
void AdapterRegistry::ForgetOne() {
  Adapter forgotten;  // ends behind the lock
  absl::MutexLock lock(&mu_);
  Known *idle = nullptr, *busy = nullptr;
  size_t num_shown = 0;
  for (auto& [name, known] : known_) {
    if (known.adapter == nullptr) continue;
    ++num_shown;
    Known*& oldest = known.adapter.use_count() == 1 ? idle : busy;
    if (oldest == nullptr || known.last_use < oldest->last_use) oldest = &known;
  }
  const bool one_leaves = num_shown < held_.size();
  Known* const chosen = idle != nullptr ? idle : one_leaves ? nullptr : busy;
  if (chosen != nullptr) forgotten = std::move(chosen->adapter);
}

// The adapter's place becomes free once its open requests have got their errors.
void AdapterRegistry::ForgetDropped() {
  std::vector<Adapter> dropped;  // end behind the lock
  absl::MutexLock lock(&mu_);
  for (auto& [name, known] : known_) {
    if (known.is_dropped()) dropped.push_back(std::move(known.adapter));
  }
}

void AdapterRegistry::EndUnused() {
  std::erase_if(held_, [](const Held& held) { return held.unused->stopped(); });
}

int32_t AdapterRegistry::FreeSlot() {
  EndUnused();
  for (int32_t slot = 1; slot <= options_.max_adapters; ++slot) {
    if (std::none_of(held_.begin(), held_.end(),
                     [slot](const Held& held) { return held.adapter.slot == slot; }))
      return slot;
  }
  return 0;
}

absl::Status AdapterRegistry::Read(const std::string& name, int32_t slot, Known* known) {
  const auto unused = std::make_shared<StopSignal>();
  auto* const made =
      new RequestAdapter{.slot = slot, .id = NewId(), .name = name, .path = known->path, .salt = known->salt};
  const Adapter adapter(made, [unused](const RequestAdapter* ended) {
    delete ended;
    unused->Stop();
  });
  Held held{.adapter = {.slot = slot,
                        .id = adapter->id,
                        .name = name,
                        .path = known->path,
                        .fingerprint = known->fingerprint,
                        .dropped = std::make_shared<std::atomic<bool>>(false)},
            .unused = unused};
  ASSIGN_OR_RETURN(TransitionReport report, Tell(&held));
  held.adapter.fingerprint = known->fingerprint = report.adapters[adapter->id];
  known->adapter = adapter;
  known->dropped = held.adapter.dropped;
  held.shared = adapter;
  held_.push_back(std::move(held));
  return absl::OkStatus();
}

bool AdapterRegistry::Restore(const std::string& name, Known* known) {
  if (num_loads_ > 0) return false;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [other, count] : waiting_) {
      const auto found = known_.find(other);
      if (other != name && found != known_.end() && found->second.adapter == nullptr) return false;
    }
  }
  for (const Held& held : held_) {
    const Adapter adapter = held.shared.lock();
    if (adapter == nullptr || adapter->name != name || adapter->salt != known->salt) continue;
    if (held.adapter.dropped->load()) continue;
    known->adapter = adapter;
    known->dropped = held.adapter.dropped;
    return true;
  }
  return false;
}

absl::StatusOr<TransitionReport> AdapterRegistry::Tell(const Held* added) {
  EndUnused();
  std::vector<HeldAdapter> adapters;
  for (const Held& held : held_) {
    if (held.adapter.dropped->load()) continue;
    adapters.push_back(held.adapter);
    adapters.back().must_be_held = true;
  }
  if (added != nullptr) adapters.push_back(added->adapter);
  return engine_->SetAdapters(std::move(adapters));
}

}  // namespace somnus
