#include "coordinator/openai/adapter_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/random_hex.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace somnus {
namespace {

absl::Status CheckText(const char* field, const std::string& text, size_t most) {
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(field, ": must not be empty"));
  if (text.size() > most)
    return absl::InvalidArgumentError(absl::StrCat(field, ": is longer than ", most, " bytes"));
  if (!IsUtf8(text) || text.find('\0') != std::string::npos)
    return absl::InvalidArgumentError(absl::StrCat(field, ": is not text"));
  return absl::OkStatus();
}

uint64_t NewId() {
  uint64_t id = 0;
  while (id == 0) {
    if (!absl::SimpleHexAtoi(RandomHex(8), &id)) id = 0;
  }
  return id;
}

}  // namespace

AdapterRegistry::AdapterRegistry(std::shared_ptr<Engine> engine, const AdapterRegistryOptions& options)
    : engine_(std::move(engine)), options_(options) {}

AdapterRegistry::~AdapterRegistry() = default;

absl::Status AdapterRegistry::Load(const std::string& name, const std::string& path, bool in_place) {
  RETURN_IF_ERROR(CheckText("lora_name", name, kMaxNameBytes));
  RETURN_IF_ERROR(CheckText("lora_path", path, kMaxPathBytes));
  absl::MutexLock lock(&call_mu_);
  Adapter replaced = Find(name);
  if (replaced != nullptr && !in_place) {
    return absl::AlreadyExistsError(
        absl::StrCat("lora_name: '", name, "' is loaded; load_inplace replaces it"));
  }
  std::erase_if(held_, [](const Held& held) { return held.unused->stopped(); });
  int32_t slot = FreeSlot();
  if (slot == 0 && replaced == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(options_.max_adapters,
                                                     " adapters are loaded, which is as many as "
                                                     "--max-cpu-loras allows; unload one"));
  }
  const std::string old_path = replaced == nullptr ? "" : replaced->path;
  const bool in_its_place = slot == 0;
  if (in_its_place) {
    slot = replaced->slot;
    replaced.reset();
    RETURN_IF_ERROR(Retire(name));
  }
  Held held;
  Adapter adapter = Make(name, path, slot, &held);
  absl::Status told = Tell(&held);
  if (told.ok()) {
    held_.push_back(std::move(held));
    Show(name, std::move(adapter));
    return told;
  }
  if (!in_its_place) return told;
  Adapter old = Make(name, old_path, slot, &held);
  if (Tell(&held).ok()) {
    held_.push_back(std::move(held));
    Show(name, std::move(old));
  }
  return told;
}

absl::Status AdapterRegistry::Unload(const std::string& name) {
  absl::MutexLock lock(&call_mu_);
  if (Find(name) == nullptr)
    return absl::NotFoundError(absl::StrCat("lora_name: no adapter is named '", name, "'"));
  RETURN_IF_ERROR(Retire(name));
  const absl::Status told = Tell(nullptr);
  if (told.ok()) return told;
  return absl::Status(told.code(), absl::StrCat("'", name, "' is no longer served, but the workers keep the ",
                                                "adapter until the next load or unload: ", told.message()));
}

absl::Status AdapterRegistry::Retire(const std::string& name) {
  Adapter adapter = Hide(name);
  const uint64_t id = adapter->id;
  const auto held = std::find_if(held_.begin(), held_.end(), [id](const Held& one) { return one.id == id; });
  adapter.reset();
  if (!held->unused->WaitFor(options_.unload_timeout)) {
    if (Adapter still_used = held->adapter.lock(); still_used != nullptr) {
      Show(name, std::move(still_used));
      return absl::DeadlineExceededError(
          absl::StrCat("lora_name: requests with '", name, "' have not ended within ",
                       absl::FormatDuration(options_.unload_timeout), "; the adapter stays"));
    }
  }
  held_.erase(held);
  return absl::OkStatus();
}

int32_t AdapterRegistry::FreeSlot() const {
  for (int32_t slot = 1; slot <= options_.max_adapters; ++slot) {
    if (std::none_of(held_.begin(), held_.end(), [slot](const Held& held) { return held.slot == slot; }))
      return slot;
  }
  return 0;
}

absl::Status AdapterRegistry::Tell(const Held* added) {
  std::vector<HeldAdapter> adapters;
  const auto add = [&adapters](const Held& held) {
    adapters.push_back({.slot = held.slot, .id = held.id, .name = held.name, .path = held.path});
  };
  for (const Held& held : held_) add(held);
  if (added != nullptr) add(*added);
  return engine_->SetAdapters(std::move(adapters));
}

AdapterRegistry::Adapter AdapterRegistry::Make(const std::string& name, const std::string& path, int32_t slot,
                                               Held* held) const {
  const auto unused = std::make_shared<StopSignal>();
  auto* const made = new RequestAdapter{.slot = slot,
                                        .id = NewId(),
                                        .name = name,
                                        .path = path,
                                        .salt = absl::StrCat("lora:", RandomHex(16), ":")};
  Adapter adapter(made, [unused](const RequestAdapter* ended) {
    delete ended;
    unused->Stop();
  });
  *held = {.adapter = adapter, .unused = unused, .slot = slot, .id = made->id, .name = name, .path = path};
  return adapter;
}

void AdapterRegistry::Show(const std::string& name, Adapter adapter) {
  absl::MutexLock lock(&mu_);
  std::swap(shown_[name], adapter);  // an adapter that was shown before ends behind the lock
}

AdapterRegistry::Adapter AdapterRegistry::Hide(const std::string& name) {
  absl::MutexLock lock(&mu_);
  const auto found = shown_.find(name);
  Adapter adapter = std::move(found->second);
  shown_.erase(found);
  return adapter;
}

std::shared_ptr<const RequestAdapter> AdapterRegistry::Find(const std::string& name) const {
  absl::MutexLock lock(&mu_);
  const auto found = shown_.find(name);
  return found == shown_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<const RequestAdapter>> AdapterRegistry::List() const {
  absl::MutexLock lock(&mu_);
  std::vector<Adapter> adapters;
  for (const auto& [name, adapter] : shown_) adapters.push_back(adapter);
  return adapters;
}

}  // namespace somnus
