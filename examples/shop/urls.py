"""Where the view is."""

from django.urls import path

from shop.views import pay

urlpatterns = [path("orders/<int:order>/pay", pay)]
