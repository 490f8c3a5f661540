#include "worker/comm/nccl_api.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/shared_library.h"

namespace somnus {
namespace {

// The first version with non-blocking communicators that can be polled, and with the Config that we pass.
constexpr int kOldestVersion = 21800;

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

// With graph registration NCCL keeps the physical pages that captured buffers had. Ours lie in memory that
// sleeps and wakes with other pages at the same addresses: replayed collectives would then read the old
// pages, or hang. NCCL reads the variable once, when the first communicator is made.
constexpr char kGraphRegister[] = "NCCL_GRAPH_REGISTER";

absl::StatusOr<NcclApi> Resolve() {
  const absl::StatusOr<void*> library = OpenLibrary({"libnccl.so.2"});
  if (absl::IsUnavailable(library.status())) {
    return absl::UnavailableError(absl::StrCat("there is no NCCL: ", library.status().message()));
  }
  if (!library.ok()) return library.status();
  NcclApi api;
#define SOMNUS_NCCL_RESOLVE(name, ...) api.name = reinterpret_cast<NcclApi::name##_t>(dlsym(*library, #name));
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

void SetNcclEnvironment() { setenv(kGraphRegister, "0", 1); }

absl::StatusOr<const NcclApi*> NcclApi::Load() {
  const char* const graph_register = getenv(kGraphRegister);
  if (graph_register == nullptr || absl::string_view(graph_register) != "0") {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL cannot be used: ", kGraphRegister, " is not 0 in the environment"));
  }
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
