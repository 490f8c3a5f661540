#include "worker/comm/nccl_api.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

// Non-blocking communicators whose collectives may be polled, and the Config that we pass.
constexpr int kOldestVersion = 21800;

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<NcclApi> Resolve() {
  // With graph registration NCCL keeps the physical pages that captured buffers had. Ours lie in memory that
  // sleeps and wakes with other pages at the same addresses: replayed collectives would then read the old
  // ones, or hang. NCCL reads the variable once, when its first communicator is made.
  setenv("NCCL_GRAPH_REGISTER", "0", 1);
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return absl::UnavailableError(absl::StrCat("there is no NCCL: ", reason == nullptr ? "" : reason));
  }
  NcclApi api;
#define SOMNUS_NCCL_RESOLVE(name, ...) api.name = reinterpret_cast<NcclApi::name##_t>(dlsym(library, #name));
  SOMNUS_NCCL_ENTRY_POINTS(SOMNUS_NCCL_RESOLVE)
  SOMNUS_NCCL_OPTIONAL_ENTRY_POINTS(SOMNUS_NCCL_RESOLVE)
#undef SOMNUS_NCCL_RESOLVE
#define SOMNUS_NCCL_REQUIRE(name, ...) \
  if (api.name == nullptr) return absl::UnavailableError("NCCL is too old: it has no " #name);
  SOMNUS_NCCL_ENTRY_POINTS(SOMNUS_NCCL_REQUIRE)
#undef SOMNUS_NCCL_REQUIRE
  if (api.ncclGetVersion(&api.version) != nccl::kSuccess || api.version < kOldestVersion) {
    return absl::UnavailableError(absl::StrCat("NCCL ", VersionText(api.version), " is too old: ",
                                               VersionText(kOldestVersion), " or later is wanted"));
  }
  return api;
}

}  // namespace

absl::StatusOr<const NcclApi*> NcclApi::Load() {
  static const auto* const api = new absl::StatusOr<NcclApi>(Resolve());
  if (!api->ok()) return api->status();
  return &**api;
}

absl::StatusOr<std::string> MakeNcclUniqueId(const NcclApi& api) {
  nccl::UniqueId id;
  const nccl::Result result = api.ncclGetUniqueId(&id);
  if (result != nccl::kSuccess) {
    return absl::UnavailableError(absl::StrCat("ncclGetUniqueId: ", api.ncclGetErrorString(result)));
  }
  return std::string(id.bytes, sizeof(id.bytes));
}

}  // namespace somnus
