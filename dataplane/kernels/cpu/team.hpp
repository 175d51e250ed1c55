// A fixed team of threads that run one function together, and the barrier between its phases.
//
// A forward pass has hundreds of phases of tens of microseconds: waking a thread for each would cost more than the
// phase. So the team spins. Where a thread is late all the same, it was preempted: there is more work than cores, and
// the others give up their core and sleep until it has caught up.
#pragma once

#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace pagoda {

inline constexpr int kSpins = 3000;  // some 40 us: longer than any phase is uneven, and as long as a wake-up takes
inline constexpr int kYields = 20;   // then whoever else wants the core may have it

class Team {
 public:
  using Work = void (*)(void* context, int thread);

  explicit Team(int threads) : threads_(threads) {
    for (int thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { serve(thread); });
    }
  }

  ~Team() {
    stopping_ = true;
    call();
    for (auto& worker : workers_) worker.join();
  }

  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Runs work(context, 0) here and work(context, i) on every other thread; returns when all have ended.
  void run(Work work, void* context) {
    work_ = work;
    context_ = context;
    call();
    work(context, 0);
    barrier();
  }

  // Waits until every thread of the team is here. What they wrote before is visible to all after.
  void barrier() {
    const uint32_t turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      turn_.notify_all();
      return;
    }
    wait_while(turn_, turn);
  }

 private:
  void call() {
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
  }

  static void wait_while(const std::atomic<uint32_t>& word, uint32_t old) {
    for (int tries = 0; word.load(std::memory_order_acquire) == old; ++tries) {
      if (tries < kSpins) {
        _mm_pause();
      } else if (tries < kSpins + kYields) {
        sched_yield();
      } else {
        word.wait(old, std::memory_order_acquire);
      }
    }
  }

  void serve(int thread) {
    uint32_t seen = 0;
    for (;;) {
      wait_while(calls_, seen);
      seen = calls_.load(std::memory_order_acquire);
      if (stopping_) return;
      work_(context_, thread);
      barrier();
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  Work work_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<uint32_t> calls_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> turn_{0};
};

// Hands out 0..count-1 in runs to whoever asks. Every thread has a stretch of its own, so that what it reads lies in a
// row and can be fetched ahead; who is through with his helps the others: a thread that is slowed by a neighbour does
// less.
class Shares {
 public:
  explicit Shares(int threads) : next_(threads) {}

  void open(int count, int run) {
    count_ = count;
    run_ = run < 1 ? 1 : run;
    for (int thread = 0; thread < threads(); ++thread) {
      next_[thread].at.store(begin_of(thread), std::memory_order_relaxed);
    }
  }

  // Where the stretch of a thread begins, and the one before ends.
  static int begin_of(int count, int thread, int threads) {
    return static_cast<int>(int64_t(count) * thread / threads);
  }
  int begin_of(int thread) const { return begin_of(count_, thread, threads()); }

  // The next run for `thread` as [begin, end); false when nothing is left.
  bool take(int thread, int& begin, int& end) {
    for (int i = 0; i < threads(); ++i) {
      const int owner = (thread + i) % threads(), limit = begin_of(owner + 1);
      if (next_[owner].at.load(std::memory_order_relaxed) >= limit) continue;
      begin = next_[owner].at.fetch_add(run_, std::memory_order_relaxed);
      if (begin >= limit) continue;
      end = begin + run_ < limit ? begin + run_ : limit;
      return true;
    }
    return false;
  }

 private:
  struct alignas(64) Next {
    std::atomic<int> at{0};
  };

  int threads() const { return static_cast<int>(next_.size()); }

  std::vector<Next> next_;
  int count_ = 0;
  int run_ = 1;
};

}  // namespace pagoda
