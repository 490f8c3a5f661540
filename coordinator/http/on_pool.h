#pragma once
// Moves work of a connection's coroutine that would take too long off the I/O thread: short work to a pool of
// threads, and work that may wait to a thread of its own. Internal to coordinator/http.

// Boost 1.74's awaitable.hpp uses std::exchange without including <utility>.
// clang-format off
#include <utility>
// clang-format on

#include <boost/asio/async_result.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <memory>
#include <type_traits>

#include "absl/status/statusor.h"
#include "base/heartbeat.h"
#include "base/threads.h"

namespace somnus {

// Runs `work` on `pool`; the coroutine resumes with the result on the I/O thread.
template <typename Work>
boost::asio::awaitable<std::invoke_result_t<Work>> OnPool(boost::asio::thread_pool* pool, Work work) {
  auto task = [&work]() -> boost::asio::awaitable<std::invoke_result_t<Work>> {
    const Heartbeat::Wait turn(absl::ZeroDuration());  // between two tasks the thread may wait for ever
    co_return work();
  };
  co_return co_await boost::asio::co_spawn(*pool, std::move(task), boost::asio::use_awaitable);
}

// Returns an exception of `work` as an error: on a TaskThreads thread the exception would end the process.
template <typename Work>
absl::StatusOr<std::invoke_result_t<Work>> ResultOf(const Work& work) {
  try {
    return work();
  } catch (const std::exception&) {
    return absl::InternalError("internal error");
  }
}

// Runs `work` on a thread of `threads`; the coroutine resumes with the result on the I/O thread. An error: no
// thread is to be had and `work` has not run, or `work` has thrown an exception.
template <typename Work>
boost::asio::awaitable<absl::StatusOr<std::invoke_result_t<Work>>> OnThread(TaskThreads* threads, Work work) {
  using Result = absl::StatusOr<std::invoke_result_t<Work>>;
  const auto start = [threads, &work](auto handler) {
    // The handler is shared, since a std::function is copied. The guard keeps the I/O thread alive.
    const auto resume = std::make_shared<decltype(handler)>(std::move(handler));
    const auto executor = boost::asio::get_associated_executor(*resume);
    const auto reply = [resume, executor, guard = boost::asio::make_work_guard(executor)](Result result) {
      boost::asio::post(executor, [resume, result = std::move(result)]() mutable {
        std::move (*resume)(std::move(result));
      });
    };
    if (absl::Status status = threads->Run([reply, &work] { reply(ResultOf(work)); }); !status.ok())
      reply(std::move(status));
  };
  co_return co_await boost::asio::async_initiate<const boost::asio::use_awaitable_t<>, void(Result)>(
      start, boost::asio::use_awaitable);
}

}  // namespace somnus
