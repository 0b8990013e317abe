"""What tests are made of: engines that do as they are told, engines that fail as they are told, and the conformance kit.

- `scripted`: a platform whose answers stand in a file, in both shapes of engine;
- `faulty`: the same, with any fault in any phase of its life;
- `launch`: one real worker process for a test, with no pool and no server;
- `platform_suite`, `dialect_suite`: the tests that every platform and dialect passes.

All of it is product: public, documented, used by Cardcage's own tests and by authors of plugins alike.
"""
