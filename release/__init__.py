"""What a release needs: wheels, versions of dependencies, pins, a dry run, and the nightly page."""
