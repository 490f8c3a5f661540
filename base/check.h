#pragma once
// CHECK is for broken invariants only: it says where and ends the process. Bad input is an absl::Status.

#include <cstdio>
#include <cstdlib>

#define SOMNUS_CHECK(condition)                                                              \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: broken invariant: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)
