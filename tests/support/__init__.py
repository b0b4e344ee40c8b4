"""What the engine's tests are made with: tiny models, a runner without a model, poison, and checks of whole replies."""
