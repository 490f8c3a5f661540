#pragma once
// Early return on absl::Status.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns the status of `expr` from the enclosing function unless it is ok.
#define RETURN_IF_ERROR(expr)                                                           \
  do {                                                                                  \
    if (absl::Status somnus_status = (expr); !somnus_status.ok()) return somnus_status; \
  } while (false)

#define SOMNUS_CONCAT_INNER(a, b) a##b
#define SOMNUS_CONCAT(a, b) SOMNUS_CONCAT_INNER(a, b)

// ASSIGN_OR_RETURN(auto x, F()) declares or assigns x, or returns F's error from the enclosing function.
#define ASSIGN_OR_RETURN(lhs, expr) ASSIGN_OR_RETURN_IMPL(SOMNUS_CONCAT(somnus_or_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                          \
  if (!tmp.ok()) return tmp.status();         \
  lhs = *std::move(tmp)
